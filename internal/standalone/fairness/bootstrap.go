package fairness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// configObject is a flow schema or a priority level.
type configObject interface {
	*flowcontrolv1.FlowSchema | *flowcontrolv1.PriorityLevelConfiguration
	metav1.Object
}

// client is upstream's client of one of the kinds.
type client[P configObject] interface {
	Create(ctx context.Context, obj P, options metav1.CreateOptions) (P, error)
	Update(ctx context.Context, obj P, options metav1.UpdateOptions) (P, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// requiredObjects are the objects of one kind that every server has.
type requiredObjects[P configObject] struct {
	resource string
	// Mandatory objects are always restored. Users may change or opt out of the suggested ones.
	mandatory, suggested []P
	copy                 func(P) P
	// adopt sets the specification of an object to the wanted one, except for the parts that users may change. It
	// reports whether the specification has changed.
	adopt func(obj, wanted P) (changed bool)
	write client[P]
	list  func() ([]P, error)
}

func flowSchemas(
	write client[*flowcontrolv1.FlowSchema],
	list func() ([]*flowcontrolv1.FlowSchema, error),
) requiredObjects[*flowcontrolv1.FlowSchema] {
	return requiredObjects[*flowcontrolv1.FlowSchema]{
		resource: "flow schema", mandatory: bootstrap.MandatoryFlowSchemas, suggested: bootstrap.SuggestedFlowSchemas,
		copy: (*flowcontrolv1.FlowSchema).DeepCopy,
		adopt: func(obj, wanted *flowcontrolv1.FlowSchema) bool {
			spec := wanted.DeepCopy().Spec
			changed := !apiequality.Semantic.DeepEqual(obj.Spec, spec)
			obj.Spec = spec
			return changed
		},
		write: write, list: list,
	}
}

func priorityLevels(
	write client[*flowcontrolv1.PriorityLevelConfiguration],
	list func() ([]*flowcontrolv1.PriorityLevelConfiguration, error),
) requiredObjects[*flowcontrolv1.PriorityLevelConfiguration] {
	return requiredObjects[*flowcontrolv1.PriorityLevelConfiguration]{
		resource:  "priority level",
		mandatory: bootstrap.MandatoryPriorityLevelConfigurations,
		suggested: bootstrap.SuggestedPriorityLevelConfigurations,
		copy:      (*flowcontrolv1.PriorityLevelConfiguration).DeepCopy,
		adopt: func(obj, wanted *flowcontrolv1.PriorityLevelConfiguration) bool {
			spec := wanted.DeepCopy().Spec
			if obj.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && obj.Spec.Exempt != nil {
				spec.Exempt = obj.Spec.Exempt
			}
			changed := !apiequality.Semantic.DeepEqual(obj.Spec, spec)
			obj.Spec = spec
			return changed
		},
		write: write,
		list:  list,
	}
}

// ensure writes missing and changed objects, and deletes objects that another release suggested and this one does
// not. It reports whether another writer was faster for one of them: the result is visible in the next call of
// ensure.
func (s requiredObjects[P]) ensure(ctx context.Context) (overtaken bool, err error) {
	all, err := s.list()
	if err != nil {
		return false, fmt.Errorf("list each %s: %w", s.resource, err)
	}
	there := map[string]P{}
	for _, obj := range all {
		there[obj.GetName()] = obj
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	do := func(verb, name string, write func() error) {
		running.Go(func() {
			err := write()
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				overtaken = true
				return
			}
			errs = append(errs, fmt.Errorf("%s the %s %s: %w", verb, s.resource, name, err))
		})
	}
	for _, wanted := range slices.Concat(s.mandatory, s.suggested) {
		existing, ok := there[wanted.GetName()]
		delete(there, wanted.GetName())
		if !ok {
			do("create", wanted.GetName(), func() error {
				_, err := s.write.Create(ctx, s.copy(wanted), metav1.CreateOptions{FieldManager: fieldManager})
				return err
			})
			continue
		}
		if changed, ok := s.reconcile(existing, wanted); ok {
			do("update", wanted.GetName(), func() error {
				_, err := s.write.Update(ctx, changed, metav1.UpdateOptions{FieldManager: fieldManager})
				return err
			})
		}
	}
	for name, obj := range there {
		if updates, said := autoUpdate(obj); !said || !updates {
			continue
		}
		do("delete", name, func() error {
			version := obj.GetResourceVersion()
			return s.write.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
		})
	}
	running.Wait()
	return overtaken, errors.Join(errs...)
}

// reconcile returns the object to write in place of existing. It returns false if existing may stay.
func (s requiredObjects[P]) reconcile(existing, wanted P) (P, bool) {
	obj := s.copy(existing)
	updates, said := autoUpdate(existing)
	switch {
	case slices.ContainsFunc(s.mandatory, func(m P) bool { return m.GetName() == existing.GetName() }):
		said, updates = said && updates, true
	case !said:
		// The generation is 1 if the specification was never changed.
		updates = existing.GetGeneration() == 1
	}
	changed := updates && s.adopt(obj, wanted)
	if !said {
		annotate(obj, updates)
		changed = true
	}
	return obj, changed
}

// autoUpdate returns the value of the annotation that allows the server to update an object, and whether it has a
// valid one.
func autoUpdate(obj metav1.Object) (updates, said bool) {
	updates, err := strconv.ParseBool(obj.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey])
	return updates, err == nil
}

func annotate(obj metav1.Object, updates bool) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(updates)
	obj.SetAnnotations(annotations)
}
