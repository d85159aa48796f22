package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// subresource returns the endpoint of a custom subresource in a version of the kind.
func (k *Kind) subresource(s *define.Subresource, v *define.Version) rest.Storage {
	switch {
	case s.Take != nil:
		store, strategy := *k.store, partStrategy{k.strategy, s}
		store.UpdateStrategy, store.ResetFieldsStrategy = strategy, strategy
		return &statusREST{store: &store, dryRun: k.dryRunHooks()}
	case s.IsView:
		return newView(k, s, v)
	case s.Connects():
		return &connectREST{kind: k, sub: s, version: v}
	}
	r := &requestREST{kind: k, sub: s, version: v}
	create, update := slices.Contains(s.Operations, admission.Create), slices.Contains(s.Operations, admission.Update)
	switch {
	case create && update:
		return r
	case update:
		return struct {
			requests
			updates
		}{r, r}
	default:
		return struct {
			requests
			namedCreates
		}{r, r}
	}
}

// requests is the common part of all subresources with requests. The API machinery derives the verbs from the other
// methods.
type requests interface {
	rest.Storage
	rest.StorageMetadata
	rest.GroupVersionKindProvider
	rest.GroupVersionAcceptor
}

type namedCreates interface {
	Create(
		ctx context.Context,
		name string,
		obj runtime.Object,
		valid rest.ValidateObjectFunc,
		options *metav1.CreateOptions,
	) (runtime.Object, error)
}

// requestREST is a custom subresource that accepts requests.
type requestREST struct {
	kind    *Kind
	sub     *define.Subresource
	version *define.Version
}

var (
	_ rest.NamedCreater    = (*requestREST)(nil)
	_ rest.Updater         = (*requestREST)(nil)
	_ rest.StorageMetadata = (*requestREST)(nil)
)

func (r *requestREST) New() runtime.Object { return r.sub.New() }

// GroupVersionKind returns the kind of the request body. Its group differs from the parent's if the subresource has
// facts of its own.
func (r *requestREST) GroupVersionKind(served schema.GroupVersion) schema.GroupVersionKind {
	return r.sub.InVersion(served).WithKind(r.sub.Object.Name())
}

// AcceptsGroupVersion reports whether a body may be of a group and version.
func (r *requestREST) AcceptsGroupVersion(sent schema.GroupVersion) bool {
	return sent == r.sub.InVersion(r.version.GroupVersion)
}

// Destroy does nothing: the main endpoint destroys the storage.
func (r *requestREST) Destroy() {}

func (r *requestREST) ProducesMIMETypes(string) []string { return nil }

// ProducesObject returns a value of the response type for OpenAPI; nil means the type of the request.
func (r *requestREST) ProducesObject(string) any {
	if r.sub.Answer == r.sub.Object {
		return nil
	}
	return r.kind.sample(r.sub.Answer, r.version)
}

// sample returns a value of the Go type that OpenAPI describes for t. For the hub that is the kind in the request's
// version.
func (k *Kind) sample(t reflect.Type, v *define.Version) any {
	if t == k.Definition.Hub().Type {
		t = v.Type
	}
	return reflect.Zero(t).Interface()
}

// Create implements rest.NamedCreater for POST.
func (r *requestREST) Create(
	ctx context.Context,
	name string,
	obj runtime.Object,
	admitted rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	parent, err := r.kind.parent(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := r.checkName(obj, name); err != nil {
		return nil, err
	}
	if admitted != nil {
		if err := admitted(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	unchanged := &metav1.Preconditions{UID: uidOf(parent)}
	return r.handle(ctx, admission.Create, parent, obj, options.DryRun, options.FieldManager, unchanged)
}

// checkName returns an error if the request has another name than its parent. It sets an empty name.
func (r *requestREST) checkName(obj runtime.Object, name string) error {
	m, ok := obj.(metav1.Object)
	switch {
	case !ok:
	case m.GetName() == "":
		m.SetName(name)
	case m.GetName() != name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", m.GetName(), name))
	}
	return nil
}

// Update implements rest.Updater for PUT. The old object of the update is an empty request with the identity of the
// parent, so that a request can use the parent's UID and resource version as preconditions.
func (r *requestREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	_ rest.ValidateObjectFunc,
	admitted rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	parent, err := r.kind.parent(ctx, name)
	if err != nil {
		return nil, false, err
	}
	old := r.sub.New()
	m, identity := objects.Meta(old), objects.Meta(parent)
	m.SetName(identity.GetName())
	m.SetNamespace(identity.GetNamespace())
	m.SetUID(identity.GetUID())
	m.SetResourceVersion(identity.GetResourceVersion())
	obj, err := info.UpdatedObject(ctx, old)
	if err != nil {
		return nil, false, err
	}
	unchanged := &metav1.Preconditions{UID: uidOf(parent)}
	sent := objects.Meta(obj)
	if sent.GetUID() != "" && sent.GetUID() != identity.GetUID() {
		return nil, false, r.conflict(
			name,
			fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", sent.GetUID(), identity.GetUID()),
		)
	}
	if version := sent.GetResourceVersion(); version != "" {
		if version != identity.GetResourceVersion() {
			return nil, false, r.conflict(name, genericregistry.OptimisticLockErrorMsg)
		}
		unchanged.ResourceVersion = &version
	}
	if admitted != nil {
		if err := admitted(ctx, obj.DeepCopyObject(), old); err != nil {
			return nil, false, err
		}
	}
	answer, err := r.handle(ctx, admission.Update, parent, obj, options.DryRun, options.FieldManager, unchanged)
	return answer, false, err
}

func (r *requestREST) conflict(name, text string) error {
	return apierrors.NewConflict(r.kind.Definition.GroupResource(), name, errors.New(text))
}

// handle calls the user's function with an admitted request.
func (r *requestREST) handle(
	ctx context.Context,
	operation admission.Operation,
	parent, obj runtime.Object,
	dryRun []string,
	fieldManager string,
	unchanged *metav1.Preconditions,
) (runtime.Object, error) {
	name := objects.Meta(parent).GetName()
	if err := r.kind.validate(ctx, r.sub, obj, name); err != nil {
		return nil, err
	}
	call := r.call(ctx, operation, parent, obj, dryRun, fieldManagerOf(ctx, fieldManager), unchanged)
	answer, err := r.sub.Handle(ctx, call)
	if err != nil {
		return nil, statusOf(err)
	}
	if objects.IsNil(answer) {
		return nil, apierrors.NewInternalError(
			fmt.Errorf("subresource %s of %s returned no object", r.sub.Name, r.kind.Definition.GroupResource()),
		)
	}
	return answer, nil
}

// call builds the argument of the user's function, or of an operation, from a request.
func (r *requestREST) call(
	ctx context.Context,
	operation admission.Operation,
	parent, obj runtime.Object,
	dryRun []string,
	fieldManager string,
	unchanged *metav1.Preconditions,
) *define.Call {
	name := objects.Meta(parent).GetName()
	call := &define.Call{
		Operation:   operation,
		Resource:    r.version.GroupVersion.WithResource(r.kind.Definition.Resource),
		Namespace:   objects.Meta(parent).GetNamespace(),
		Name:        name,
		Parent:      parent,
		Kind:        r.kind.Definition.Name,
		Subresource: r.sub,
		Object:      obj,
		User:        caller(ctx),
		DryRun:      dryrun.IsDryRun(dryRun),
		Wait:        waitOf(ctx),
	}
	update := func(store *genericregistry.Store, fields *managedfields.FieldManager) func(context.Context,
		func(runtime.Object) error) (runtime.Object, error) {
		return func(ctx context.Context, change func(runtime.Object) error) (runtime.Object, error) {
			if store == nil {
				return nil, apierrors.NewInternalError(
					fmt.Errorf("subresource %s: %s has no /status to update", r.sub.Name, r.kind.Definition.GroupResource()),
				)
			}
			options := &metav1.UpdateOptions{DryRun: dryRun, FieldManager: fieldManager}
			obj, _, err := store.Update(
				ctx,
				name,
				parentChange{change, unchanged, fields, fieldManager},
				nil,
				r.kind.dryRunHooks().update(r.admit(call, options), dryRun),
				false,
				options,
			)
			return obj, err
		}
	}
	managers := r.kind.managers[r.version]
	call.Update, call.UpdateStatus = update(r.kind.store, managers.main), update(r.kind.status, managers.status)
	call.Start = func(ctx context.Context) (runtime.Object, error) { return r.kind.operations.Start(ctx, call) }
	return call
}

// validate validates a request, or options, by its markers, its tags and the user's function.
func (k *Kind) validate(ctx context.Context, s *define.Subresource, obj runtime.Object, name string) error {
	if obj == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Structural != nil {
		errs = s.Structural.ValidateMessage(ctx, obj)
	}
	if v := k.validator; v != nil && v.HasValidationFunc(obj) {
		beta := utilfeature.DefaultFeatureGate.Enabled(features.DeclarativeValidationBeta)
		errs = append(errs, validate.FilterEnforcedDeclarativeErrors(ctx, v.Validate(ctx, k.options, obj), beta)...)
	}
	if s.Validate != nil {
		errs = append(errs, s.Validate(ctx, obj)...)
	}
	if len(errs) == 0 {
		return nil
	}
	group := s.InVersion(schema.GroupVersion{Group: k.Definition.Group}).Group
	return apierrors.NewInvalid(schema.GroupKind{Group: group, Kind: s.Object.Name()}, name, errs)
}

// admit calls the validating hooks of the kind with the change of its object. Without that, a subresource would bypass
// them. Admission has already seen the request itself.
func (r *requestREST) admit(call *define.Call, options *metav1.UpdateOptions) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		attributes := admission.NewAttributesRecord(obj, old, r.version.GroupVersion.WithKind(r.kind.Definition.Name), call.Namespace, call.Name,
			call.Resource, r.sub.Name, admission.Update, options, call.DryRun, call.User)
		return r.kind.hooks.Validate(ctx, attributes, nil)
	}
}

// parentChange is a change of the parent by the user's function. The storage repeats it after a conflicting write.
type parentChange struct {
	change    func(obj runtime.Object) error
	unchanged *metav1.Preconditions
	// fields records the change in the name of manager; nil records nothing.
	fields  *managedfields.FieldManager
	manager string
}

var _ rest.UpdatedObjectInfo = parentChange{}

func (c parentChange) Preconditions() *metav1.Preconditions { return c.unchanged }

func (c parentChange) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj := old.DeepCopyObject()
	if err := c.change(obj); err != nil {
		return nil, err
	}
	if c.fields == nil {
		return obj, nil
	}
	obj = c.fields.UpdateNoErrors(old.DeepCopyObject(), obj, c.manager)
	// Without another difference, keep the old timestamps, so that nothing is written.
	return fieldmanager.IgnoreManagedFieldsTimestampsTransformer(ctx, obj, old)
}

// statusOf returns the API status that an error is or wraps, and an internal error if there is none.
func statusOf(err error) error {
	if status, ok := apierr.Status(err); ok {
		return status
	}
	return apierrors.NewInternalError(err)
}

// parent returns the object that a subresource belongs to. The caller owns it.
func (k *Kind) parent(ctx context.Context, name string) (runtime.Object, error) {
	obj, err := k.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.DeepCopyObject(), nil
}

func uidOf(obj runtime.Object) *types.UID {
	uid := objects.Meta(obj).GetUID()
	return &uid
}

func caller(ctx context.Context) user.Info {
	info, _ := request.UserFrom(ctx)
	return info
}

// connectREST is a custom subresource that connects clients to a handler.
type connectREST struct {
	kind    *Kind
	sub     *define.Subresource
	version *define.Version
}

var (
	_ rest.Connecter       = (*connectREST)(nil)
	_ rest.StorageMetadata = (*connectREST)(nil)
)

// New returns the type by which discovery and admission name the subresource: its options, as for exec of a pod, or the
// kind itself, as for log of a pod.
func (r *connectREST) New() runtime.Object {
	if r.sub.Object != nil {
		return r.sub.New()
	}
	return r.kind.Definition.Hub().New()
}

// Destroy does nothing: the main endpoint destroys the storage.
func (r *connectREST) Destroy() {}

func (r *connectREST) ProducesMIMETypes(string) []string { return nil }

// ProducesObject returns a value of the response type for OpenAPI; nil means a string.
func (r *connectREST) ProducesObject(string) any {
	if r.sub.Responds == nil {
		return nil
	}
	return r.kind.sample(r.sub.Responds, r.version)
}

func (r *connectREST) ConnectMethods() []string { return r.sub.Methods }

func (r *connectREST) NewConnectOptions() (runtime.Object, bool, string) {
	if r.sub.Object == nil {
		return nil, false, ""
	}
	return r.sub.New(), r.sub.Subpaths, define.PathOption
}

// Connect implements rest.Connecter. It returns the handler of one request.
func (r *connectREST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	parent, err := r.kind.parent(ctx, name)
	if err != nil {
		return nil, err
	}
	if options != nil && r.sub.Default != nil {
		r.sub.Default(options) // the API machinery does not apply defaults to an empty query
	}
	if err := r.kind.validate(ctx, r.sub, options, name); err != nil {
		return nil, err
	}
	c := &define.Connection{
		Resource:  r.version.GroupVersion.WithResource(r.kind.Definition.Resource),
		Namespace: objects.Meta(parent).GetNamespace(),
		Name:      name,
		Parent:    parent,
		Options:   options,
		User:      caller(ctx),
		Responder: outermostResponder{responder},
	}
	// Not together with the admission plugins, because they do not get the object.
	if err := r.kind.hooks.Connect(ctx, r.attributes(c)); err != nil {
		return nil, err
	}
	handler, err := r.sub.Connect(ctx, c)
	if err != nil {
		return nil, statusOf(err)
	}
	if handler == nil {
		return nil, apierrors.NewInternalError(
			fmt.Errorf("subresource %s of %s has no handler for this request", r.sub.Name, r.kind.Definition.GroupResource()),
		)
	}
	return handler, nil
}

// outermostResponder is a responder for errors that may wrap an API status.
type outermostResponder struct{ rest.Responder }

func (a outermostResponder) Error(err error) { a.Responder.Error(apierr.Outermost(err)) }

// attributes returns the attributes for hooks that decide about connections: the options as the object, as for
// admission plugins, and the parent as the old object.
func (r *connectREST) attributes(c *define.Connection) admission.Attributes {
	kind := r.version.GroupVersion.WithKind(cmp.Or(r.sub.Kind(), r.kind.Definition.Name))
	return admission.NewAttributesRecord(
		c.Options,
		c.Parent,
		kind,
		c.Namespace,
		c.Name,
		c.Resource,
		r.sub.Name,
		admission.Connect,
		nil,
		false,
		c.User,
	)
}
