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
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/store"
)

// rules run a kind's hooks of AdmitCreate and AdmitUpdate against the existing objects under a prefix.
type rules struct {
	kind             *define.Kind
	prefix           string
	creates, updates []define.BesideAdmission
}

// decide calls the hooks for an object and the other existing objects. If old is nil, the object is to be created;
// otherwise it replaces old. decide returns the revision at which the other objects were listed. If an object to be
// created exists already, decide returns that error and calls no hook.
func (r rules) decide(ctx context.Context, from storage.Interface, obj, old runtime.Object, dryRun bool) (revision uint64, err error) {
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
	var others []runtime.Object
	if err := meta.EachListItem(list, func(other runtime.Object) error {
		switch o := objects.Meta(other); {
		case o.GetName() != m.GetName() || o.GetNamespace() != m.GetNamespace():
			others = append(others, other)
		case old == nil:
			return storage.NewKeyExistsError(r.prefix+"/"+m.GetNamespace()+"/"+m.GetName(), 0)
		}
		return nil
	}); err != nil {
		return 0, err
	}

	reviews := r.creates
	if old != nil {
		reviews = r.updates
	}
	a := r.attributes(ctx, obj, old, dryRun)
	for _, review := range reviews {
		if err := review(ctx, a, others); err != nil {
			return 0, admit.Refusal(a, err)
		}
	}
	return revision, nil
}

func (r rules) attributes(ctx context.Context, obj, old runtime.Object, dryRun bool) admission.Attributes {
	version := r.kind.Hub()
	resource := version.GroupVersion.WithResource(r.kind.Resource)
	subresource := ""
	if info, ok := request.RequestInfoFrom(ctx); ok && info.IsResourceRequest {
		// The request may use another version, or another group.
		resource.Group, resource.Version, resource.Resource = info.APIGroup, info.APIVersion, info.Resource
		subresource = info.Subresource
	}
	who, _ := request.UserFrom(ctx)
	m := objects.Meta(obj)
	if old == nil {
		return admission.NewAttributesRecord(obj, nil, version.GroupVersionKind(), m.GetNamespace(), m.GetName(),
			resource, "", admission.Create, &metav1.CreateOptions{}, dryRun, who)
	}
	return admission.NewAttributesRecord(obj, old, version.GroupVersionKind(), m.GetNamespace(), m.GetName(),
		resource, subresource, admission.Update, &metav1.UpdateOptions{}, dryRun, who)
}

// conditionalStorage is the storage of a kind with hooks of AdmitCreate or AdmitUpdate. It makes the decision of the
// hooks and the write of the object one atomic step: the hooks see a list at one revision, and the write succeeds only
// if no object has been created since or, if the kind has hooks of AdmitUpdate, updated. Otherwise the hooks are called
// again.
//
// A write fails only because another write has succeeded, so some write always makes progress. Within a process writes
// take turns, because only one of them could succeed.
type conditionalStorage struct {
	store.ConditionalWriter
	rules rules
	turn  chan struct{}
}

func newConditionalStorage(opened storage.Interface, rules rules) (storage.Interface, error) {
	conditional, ok := opened.(store.ConditionalWriter)
	if !ok {
		return nil, fmt.Errorf(
			"AdmitCreate or AdmitUpdate of %s: the storage does not support a check for concurrent writes",
			rules.kind.GroupResource(),
		)
	}
	return &conditionalStorage{ConditionalWriter: conditional, rules: rules, turn: make(chan struct{}, 1)}, nil
}

// take waits for the turn. The caller must call leave.
func (s *conditionalStorage) take(ctx context.Context) (leave func(), err error) {
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn }, nil
	case <-ctx.Done():
		return func() {}, apierrors.NewTimeoutError(fmt.Sprintf("nothing was written: %v", context.Cause(ctx)), 0)
	}
}

// Create implements storage.Interface. It ignores ttl for ruled creates, because objects of kinds have no time to live.
func (s *conditionalStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if isEdit(ctx) || len(s.rules.creates) == 0 {
		return s.ConditionalWriter.Create(ctx, key, obj, out, ttl)
	}
	leave, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for {
		revision, err := s.rules.decide(ctx, s, obj, nil, false)
		if err != nil {
			return err
		}
		err = s.CreateIf(ctx, key, obj.DeepCopyObject(), out, store.Unchanged{Since: revision, Updates: len(s.rules.updates) > 0})
		if !errors.Is(err, store.ErrConcurrentWrite) {
			return err
		}
	}
}

// errCreates ends an update that turns out to be a create.
var errCreates = errors.New("no object to update")

// GuaranteedUpdate implements storage.Interface. If it is allowed to, it also creates the object: this is how apply
// creates objects.
func (s *conditionalStorage) GuaranteedUpdate(
	ctx context.Context,
	key string,
	destination runtime.Object,
	ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
	cached runtime.Object,
) error {
	ruled := len(s.rules.updates) > 0 && isUpdate(ctx)
	if isEdit(ctx) || !ignoreNotFound && !ruled {
		return s.ConditionalWriter.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
	}
	for {
		var err error
		if ruled {
			err = s.update(ctx, key, destination, preconditions, update)
			if storage.IsNotFound(err) && ignoreNotFound {
				err = errCreates
			}
		} else {
			err = s.ConditionalWriter.GuaranteedUpdate(
				ctx,
				key,
				destination,
				true,
				preconditions,
				func(existing runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
					if revision, err := s.Versioner().ObjectResourceVersion(existing); err != nil || revision == 0 {
						return nil, nil, errors.Join(errCreates, err)
					}
					return update(existing, response)
				},
				cached,
			)
		}
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

// update updates an existing object if the hooks of AdmitUpdate allow it. It retries after concurrent writes.
func (s *conditionalStorage) update(
	ctx context.Context,
	key string,
	destination runtime.Object,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
) error {
	for {
		if err := s.tryUpdate(ctx, key, destination, preconditions, update); !errors.Is(err, store.ErrConcurrentWrite) {
			return err
		}
	}
}

// tryUpdate takes the turn only after the object has been changed, because mutating hooks run during the change and may
// write objects themselves.
func (s *conditionalStorage) tryUpdate(
	ctx context.Context,
	key string,
	destination runtime.Object,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
) error {
	leave := func() {}
	defer func() { leave() }()
	return s.UpdateIf(
		ctx,
		key,
		destination,
		preconditions,
		func(existing runtime.Object, meta storage.ResponseMeta) (runtime.Object, uint64, error) {
			old := existing.DeepCopyObject()
			obj, _, err := update(existing, meta)
			if err != nil {
				return nil, 0, err
			}
			if leave, err = s.take(ctx); err != nil {
				return nil, 0, err
			}
			revision, err := s.rules.decide(ctx, s, obj, old, false)
			return obj, revision, err
		},
	)
}

// isUpdate reports whether a request updates an object. The storage also updates objects to mark them as being deleted.
func isUpdate(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.IsResourceRequest && info.Verb != "delete" && info.Verb != "deletecollection"
}

// dryRunHooks call the hooks of AdmitCreate and AdmitUpdate in dry runs, which do not reach the storage that calls them
// otherwise.
type dryRunHooks struct {
	owner *define.Kind
	store *genericregistry.Store
	hooks *admit.Hooks
}

func (k *Kind) dryRunHooks() dryRunHooks {
	return dryRunHooks{owner: k.Definition.Primary(), store: k.store, hooks: k.hooks}
}

func (r dryRunHooks) decide(ctx context.Context, obj, old runtime.Object) error {
	creates, updates := r.hooks.Beside(r.owner.GroupResource())
	rules := rules{r.owner, r.store.KeyRootFunc(request.WithNamespace(ctx, metav1.NamespaceAll)), creates, updates}
	if _, err := rules.decide(ctx, r.store.Storage.Storage, obj, old, true); !storage.IsExist(err) {
		return err
	}
	return nil // genericregistry reports it
}

// create returns valid, followed in a dry run by the hooks of AdmitCreate.
func (r dryRunHooks) create(valid rest.ValidateObjectFunc, dryRun []string) rest.ValidateObjectFunc {
	if len(r.owner.CreateAdmissions) == 0 || !dryrun.IsDryRun(dryRun) {
		return valid
	}
	return func(ctx context.Context, obj runtime.Object) error {
		if valid != nil {
			if err := valid(ctx, obj); err != nil {
				return err
			}
		}
		return r.decide(ctx, obj, nil)
	}
}

// update returns valid, followed in a dry run by the hooks of AdmitUpdate.
func (r dryRunHooks) update(valid rest.ValidateObjectUpdateFunc, dryRun []string) rest.ValidateObjectUpdateFunc {
	if len(r.owner.UpdateAdmissions) == 0 || !dryrun.IsDryRun(dryRun) {
		return valid
	}
	return func(ctx context.Context, obj, old runtime.Object) error {
		if valid != nil {
			if err := valid(ctx, obj, old); err != nil {
				return err
			}
		}
		return r.decide(ctx, obj, old)
	}
}

// Create implements rest.Creater.
func (r *mainREST) Create(
	ctx context.Context,
	obj runtime.Object,
	valid rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, r.dryRun.create(valid, options.DryRun), options)
}

type editKey struct{}

// withEdit marks the context of a write that applies an edit made in the storage itself, for example in a file. The
// object exists already, so it is validated, but no hook is called.
func withEdit(ctx context.Context) context.Context { return context.WithValue(ctx, editKey{}, true) }

func isEdit(ctx context.Context) bool { return ctx.Value(editKey{}) != nil }
