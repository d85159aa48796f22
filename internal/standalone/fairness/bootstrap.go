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

// object is a flow schema or a priority level.
type object interface {
	*flowcontrolv1.FlowSchema | *flowcontrolv1.PriorityLevelConfiguration
	metav1.Object
}

// client is upstream's of one of them.
type client[P object] interface {
	Create(ctx context.Context, obj P, options metav1.CreateOptions) (P, error)
	Update(ctx context.Context, obj P, options metav1.UpdateOptions) (P, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

// kept are the objects of a kind that every server has.
type kept[P object] struct {
	resource string
	// What is wrong with mandatory ones is put right whatever people want; they decide about
	// the suggested ones.
	mandatory, suggested []P
	copy                 func(P) P
	// adopt gives an object the specification that is wanted, but for what people may say of it,
	// and tells whether it had another one.
	adopt func(obj, wanted P) (changed bool)
	write client[P]
	list  func() ([]P, error)
}

func flowSchemas(
	write client[*flowcontrolv1.FlowSchema],
	list func() ([]*flowcontrolv1.FlowSchema, error),
) kept[*flowcontrolv1.FlowSchema] {
	return kept[*flowcontrolv1.FlowSchema]{
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
) kept[*flowcontrolv1.PriorityLevelConfiguration] {
	return kept[*flowcontrolv1.PriorityLevelConfiguration]{
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

// ensure writes what is missing or not as it is to be, and deletes what was suggested by another
// release and is not any more. It says whether others, who were quicker, wrote or deleted one: what
// came of it is seen when ensure is called again.
func (s kept[P]) ensure(ctx context.Context) (overtaken bool, err error) {
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

// reconcile returns what takes the place of an object, false if it may stay as it is.
func (s kept[P]) reconcile(existing, wanted P) (P, bool) {
	obj := s.copy(existing)
	updates, said := autoUpdate(existing)
	switch {
	case slices.ContainsFunc(s.mandatory, func(m P) bool { return m.GetName() == existing.GetName() }):
		said, updates = said && updates, true
	case !said:
		// The generation says whether the specification was ever changed.
		updates = existing.GetGeneration() == 1
	}
	changed := updates && s.adopt(obj, wanted)
	if !said {
		annotate(obj, updates)
		changed = true
	}
	return obj, changed
}

// autoUpdate is what the annotation says of whether the server may change an object.
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
