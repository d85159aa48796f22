package registry

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/objects"
	"github.com/annexapi/annex/store"
)

// createRules are what a kind's hooks of AdmitCreate decide by: the objects under a
// prefix.
type createRules struct {
	kind    *define.Kind
	prefix  string
	reviews []define.CreateAdmission
}

// decide asks the hooks whether an object may be created beside those that exist, and
// returns the revision at which they do. If there is an object of its name, that is the
// error, and no hook is called.
func (r createRules) decide(ctx context.Context, from storage.Interface, obj runtime.Object, dryRun bool) (revision uint64, err error) {
	list := r.kind.Hub().NewList()
	if err := from.GetList(ctx, r.prefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		return 0, err
	}
	listed, err := meta.ListAccessor(list)
	if err != nil {
		return 0, fmt.Errorf("list of %s: %w", r.kind.GroupResource(), err)
	}
	if revision, err = from.Versioner().ParseResourceVersion(listed.GetResourceVersion()); err != nil {
		return 0, fmt.Errorf("list of %s: %w", r.kind.GroupResource(), err)
	}
	m := objects.Meta(obj)
	var existing []runtime.Object
	if err := meta.EachListItem(list, func(other runtime.Object) error {
		if o := objects.Meta(other); o.GetName() == m.GetName() && o.GetNamespace() == m.GetNamespace() {
			return storage.NewKeyExistsError(r.prefix+"/"+m.GetNamespace()+"/"+m.GetName(), 0)
		}
		existing = append(existing, other)
		return nil
	}); err != nil {
		return 0, err
	}

	a := r.attributes(ctx, obj, dryRun)
	for _, review := range r.reviews {
		if err := review(ctx, a, existing); err != nil {
			return 0, admit.Refusal(a, err)
		}
	}
	return revision, nil
}

func (r createRules) attributes(ctx context.Context, obj runtime.Object, dryRun bool) admission.Attributes {
	version := r.kind.Hub()
	resource := version.GroupVersion.WithResource(r.kind.Resource)
	if info, ok := request.RequestInfoFrom(ctx); ok && info.IsResourceRequest {
		// The client may speak another version, or of another group.
		resource.Group, resource.Version, resource.Resource = info.APIGroup, info.APIVersion, info.Resource
	}
	who, _ := request.UserFrom(ctx)
	m := objects.Meta(obj)
	return admission.NewAttributesRecord(obj, nil, version.GroupVersionKind(), m.GetNamespace(), m.GetName(),
		resource, "", admission.Create, &metav1.CreateOptions{}, dryRun, who)
}

// exclusiveCreate is the storage of a kind with hooks of AdmitCreate. They decide and the
// object is written in one step: what they have looked at is a list at one revision,
// and the write happens only if nothing has been created since. Else they look again.
//
// A create that loses has lost against another that happened, so some create always
// succeeds; within a process they take turns, for only one of them could win.
type exclusiveCreate struct {
	store.ConditionalCreator
	rules createRules
	turn  chan struct{}
}

func newExclusiveCreate(opened storage.Interface, rules createRules) (storage.Interface, error) {
	conditional, ok := opened.(store.ConditionalCreator)
	if !ok {
		return nil, fmt.Errorf("AdmitCreate of %s: the storage does not say whether another object has been created meanwhile", rules.kind.GroupResource())
	}
	return &exclusiveCreate{ConditionalCreator: conditional, rules: rules, turn: make(chan struct{}, 1)}, nil
}

// Create implements storage.Interface. Objects of kinds have no time to live.
func (s *exclusiveCreate) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if isEdit(ctx) {
		return s.ConditionalCreator.Create(ctx, key, obj, out, ttl)
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return apierrors.NewTimeoutError(fmt.Sprintf("nothing was written: %v", context.Cause(ctx)), 0)
	}
	for {
		revision, err := s.rules.decide(ctx, s, obj, false)
		if err != nil {
			return err
		}
		err = s.CreateIfUnchangedSince(ctx, key, obj.DeepCopyObject(), out, revision)
		if !errors.Is(err, store.ErrConcurrentCreate) {
			return err
		}
	}
}

// errCreates ends an update that turns out to be a create.
var errCreates = errors.New("there is no object to update")

// GuaranteedUpdate implements storage.Interface. It creates, too, when it may: that is
// how apply makes an object.
func (s *exclusiveCreate) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if !ignoreNotFound || isEdit(ctx) {
		return s.ConditionalCreator.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
	}
	for {
		err := s.ConditionalCreator.GuaranteedUpdate(ctx, key, destination, true, preconditions, func(existing runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
			if revision, err := s.Versioner().ObjectResourceVersion(existing); err != nil || revision == 0 {
				return nil, nil, errors.Join(errCreates, err)
			}
			return update(existing, response)
		}, cached)
		if !errors.Is(err, errCreates) {
			return err
		}
		obj, _, err := update(s.rules.kind.Hub().New(), storage.ResponseMeta{})
		if err != nil {
			return err
		}
		if err := s.Create(ctx, key, obj, destination, 0); !storage.IsExist(err) {
			return err
		}
	}
}

// dryRunValidator is valid and, in a dry run, what the hooks of AdmitCreate say: the storage,
// which asks them otherwise, is not reached then.
func (r *mainREST) dryRunValidator(valid rest.ValidateObjectFunc, dryRun []string) rest.ValidateObjectFunc {
	primary := r.kind.Primary()
	if len(primary.CreateAdmissions) == 0 || !dryrun.IsDryRun(dryRun) {
		return valid
	}
	return func(ctx context.Context, obj runtime.Object) error {
		if valid != nil {
			if err := valid(ctx, obj); err != nil {
				return err
			}
		}
		rules := createRules{primary, r.KeyRootFunc(request.WithNamespace(ctx, metav1.NamespaceAll)), r.hooks.Creates(primary.GroupResource())}
		if _, err := rules.decide(ctx, r.Store.Storage.Storage, obj, true); !storage.IsExist(err) {
			return err
		}
		return nil // upstream says so
	}
}

// Create implements rest.Creater.
func (r *mainREST) Create(ctx context.Context, obj runtime.Object, valid rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, r.dryRunValidator(valid, options.DryRun), options)
}

type editKey struct{}

// withEdit marks the context of the write of an edit in the storage (a file, say): the
// object is there already, and is validated, but no hook decides about it.
func withEdit(ctx context.Context) context.Context { return context.WithValue(ctx, editKey{}, true) }

func isEdit(ctx context.Context) bool { return ctx.Value(editKey{}) != nil }
