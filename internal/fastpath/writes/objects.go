package writes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"
	requestmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/wire/managed"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// decode decodes the body to the hub version. It returns nil if the body has an error or needs a warning, or is of
// another version; upstream then reports it.
func (c *call) decode(into runtime.Object) runtime.Object {
	decoder, kind := c.decoder, c.Scope.Kind
	if c.options.FieldValidation != metav1.FieldValidationIgnore {
		decoder = c.strict
	}
	obj, gvk, err := decoder.Decode(c.body, &kind, into)
	if err != nil || gvk == nil || !c.Scope.AcceptsGroupVersion(gvk.GroupVersion()) {
		return nil
	}
	return obj
}

// context returns the context of a write. It has a deadline, and it makes the storage leave the stored bytes in
// c.written, of which the response is made.
func (c *call) context() (context.Context, context.CancelFunc) {
	ctx, cancel := request.WithNamespace(c.r.Context(), c.info.Namespace), func() {}
	if !fastpath.ShortenDeadline(ctx, time.Now().Add(maxWriteTime)) {
		ctx, cancel = context.WithTimeout(ctx, maxWriteTime)
	}
	if c.result.Encoding = c.Encoding; c.Encoding != nil {
		ctx = verbatim.WithWriteResult(ctx, &c.result)
	}
	return ctx, cancel
}

// admission returns the admission chain of the server, whose annotations go to the audit.
func (c *call) admission() admission.Interface { return admission.WithAudit(c.Admission) }

func (c *call) attributes(
	ctx context.Context,
	obj, old runtime.Object,
	name string,
	operation admission.Operation,
	options runtime.Object,
) admission.Attributes {
	caller, _ := request.UserFrom(ctx)
	return admission.NewAttributesRecord(
		obj,
		old,
		c.Scope.Kind,
		c.info.Namespace,
		name,
		c.Scope.Resource,
		"",
		operation,
		options,
		false,
		caller,
	)
}

// mutate runs mutating admission on an object. It discards invalid managed fields that a plugin has set, with a
// warning.
func (c *call) mutate(ctx context.Context, admit admission.Interface, attributes admission.Attributes) error {
	mutating, ok := admit.(admission.MutationInterface)
	if !ok || !mutating.Handles(attributes.GetOperation()) {
		return nil
	}
	m, err := meta.Accessor(attributes.GetObject())
	if err != nil {
		return mutating.Admit(ctx, attributes, &c.Scope)
	}
	before := m.GetManagedFields()
	if err := mutating.Admit(ctx, attributes, &c.Scope); err != nil {
		return err
	}
	after := m.GetManagedFields()
	if c.Manager.Known(after) {
		return nil
	}
	if err := managedfields.ValidateManagedFields(after); err != nil {
		m.SetManagedFields(before)
		warning.AddWarning(ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err.Error()))
	}
	return nil
}

func (c *call) create() bool {
	original := c.creater.New()
	obj := c.decode(original)
	if obj == nil {
		return false
	}
	requestmetrics.RecordRequestBodySize(c.r.Context(), c.Scope.Resource.GroupResource(), requestmetrics.Create, len(c.body))
	ctx, cancel := c.context()
	defer cancel()
	audit.LogRequestObject(c.r.Context(), obj, c.Scope.Kind.GroupVersion(), c.Scope.Resource, "", c.Scope.Serializer)
	m, err := meta.Accessor(obj)
	if err != nil {
		return c.finish(0, nil, err)
	}
	name := m.GetName()
	rest.WipeObjectMetaSystemFields(m)
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(
		rest.ExpectedNamespaceForResource(c.info.Namespace, c.Scope.Resource),
		m,
	); err != nil {
		return c.finish(0, nil, err)
	}
	options := &metav1.CreateOptions{
		TypeMeta:        typeOf("CreateOptions"),
		FieldManager:    c.options.FieldManager,
		FieldValidation: c.options.FieldValidation,
	}
	admit := c.admission()
	attributes := c.attributes(ctx, obj, nil, name, admission.Create, options)
	withoutDuplicates(c.r.Context(), m, handlers.DuplicateOwnerReferencesWarningFormat)
	result, err := c.run(ctx, func() (runtime.Object, error) {
		live, err := c.Scope.Creater.New(c.Scope.Kind)
		if err != nil {
			return nil, fmt.Errorf("failed to create new object (Create for %v): %w", c.Scope.Kind, err)
		}
		obj = c.Manager.UpdateNoErrors(live, obj, c.manager())
		if err := c.mutate(ctx, admit, attributes); err != nil {
			return nil, err
		}
		withoutDuplicates(c.r.Context(), m, handlers.DuplicateOwnerReferencesAfterMutatingAdmissionWarningFormat)
		create := func() (runtime.Object, error) {
			return c.creater.Create(ctx, obj, rest.AdmissionToValidateObjectFunc(admit, attributes, &c.Scope), options)
		}
		result, err := create()
		if isTooLarge(err) {
			m.SetManagedFields(nil) // the object may be small enough without them
			return create()
		}
		return result, err
	})
	return c.finish(http.StatusCreated, result, err)
}

func (c *call) update() bool {
	obj := c.decode(c.updater.New())
	if obj == nil {
		return false
	}
	requestmetrics.RecordRequestBodySize(c.r.Context(), c.Scope.Resource.GroupResource(), requestmetrics.Update, len(c.body))
	ctx, cancel := c.context()
	defer cancel()
	audit.LogRequestObject(c.r.Context(), obj, c.Scope.Kind.GroupVersion(), c.Scope.Resource, "", c.Scope.Serializer)
	m, err := meta.Accessor(obj)
	if err != nil {
		return c.finish(0, nil, err)
	}
	if err := c.belongs(m); err != nil {
		return c.finish(0, nil, err)
	}
	withoutDuplicates(c.r.Context(), m, handlers.DuplicateOwnerReferencesWarningFormat)
	result, created, err := c.change(
		ctx,
		false,
		&updateBody{call: c, object: obj, uid: m.GetUID()},
		func(_ context.Context, changed, live runtime.Object) (runtime.Object, error) {
			return c.Manager.UpdateNoErrors(live, changed, c.manager()), nil
		},
		true,
	)
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	return c.finish(code, result, err)
}

// updateBody is the body of an update. The first attempt takes the decoded object and changes it; each further attempt
// decodes the body again.
type updateBody struct {
	call   *call
	object runtime.Object // nil once it has been taken
	uid    types.UID
}

func (s *updateBody) take() (runtime.Object, error) {
	if obj := s.object; obj != nil {
		s.object = nil
		return obj, nil
	}
	obj := s.call.decode(s.call.updater.New())
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	withoutDuplicates(s.call.r.Context(), m, handlers.DuplicateOwnerReferencesWarningFormat)
	return obj, nil
}

// updateInfo are the transformations of an update. They begin with the object of the body, if there is one.
type updateInfo struct {
	body       *updateBody // nil if the transformations begin with the stored object
	transforms []rest.TransformFunc
}

// Preconditions implements rest.UpdatedObjectInfo.
func (c updateInfo) Preconditions() *metav1.Preconditions {
	if c.body == nil || c.body.uid == "" {
		return nil
	}
	return &metav1.Preconditions{UID: &c.body.uid}
}

// UpdatedObject implements rest.UpdatedObjectInfo.
func (c updateInfo) UpdatedObject(ctx context.Context, old runtime.Object) (obj runtime.Object, err error) {
	if c.body != nil {
		if obj, err = c.body.take(); err != nil {
			return nil, err
		}
	}
	for _, transform := range c.transforms {
		if obj, err = transform(ctx, obj, old); err != nil {
			return nil, err
		}
	}
	return obj, nil
}

// belongs returns an error if the namespace or name of an object differs from the path.
func (c *call) belongs(m metav1.Object) error {
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(
		rest.ExpectedNamespaceForResource(c.info.Namespace, c.Scope.Resource),
		m,
	); err != nil {
		return err
	}
	switch {
	case m.GetName() == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: %v", c.info.Name, errNoName))
	case m.GetName() != c.info.Name:
		return apierrors.NewBadRequest(
			fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", m.GetName(), c.info.Name),
		)
	}
	return nil
}

var errNoName = errors.New("name must be provided")

// change updates the object at the path. It begins with the object of begin, or with the stored object if begin is
// nil. transform may be called more than once. If mayLose is true, an object that is too large is stored without its
// managed fields.
func (c *call) change(
	ctx context.Context,
	mayCreate bool,
	begin *updateBody,
	transform rest.TransformFunc,
	mayLose bool,
) (result runtime.Object, created bool, err error) {
	updating := &metav1.UpdateOptions{
		TypeMeta:        typeOf("UpdateOptions"),
		FieldManager:    c.options.FieldManager,
		FieldValidation: c.options.FieldValidation,
	}
	creating := &metav1.CreateOptions{
		TypeMeta:        typeOf("CreateOptions"),
		FieldManager:    c.options.FieldManager,
		FieldValidation: c.options.FieldValidation,
	}
	admit := c.admission()
	admitted := func(ctx context.Context, changed, live runtime.Object) (runtime.Object, error) {
		attributes := c.attributes(ctx, changed, live, c.info.Name, admission.Update, updating)
		exists, err := isStored(live)
		if err != nil {
			return nil, err
		}
		if !exists {
			attributes = c.attributes(ctx, changed, nil, c.info.Name, admission.Create, creating)
		}
		if err := c.mutate(ctx, admit, attributes); err != nil {
			return nil, err
		}
		if m, err := meta.Accessor(changed); err == nil {
			withoutDuplicates(c.r.Context(), m, handlers.DuplicateOwnerReferencesAfterMutatingAdmissionWarningFormat)
		}
		return changed, nil
	}
	valid := c.withCreateAuthorization(
		rest.AdmissionToValidateObjectFunc(admit, c.attributes(ctx, nil, nil, c.info.Name, admission.Create, creating), &c.Scope),
	)
	validUpdate := rest.AdmissionToValidateObjectUpdateFunc(
		admit,
		c.attributes(ctx, nil, nil, c.info.Name, admission.Update, updating),
		&c.Scope,
	)
	update := func(info rest.UpdatedObjectInfo) (runtime.Object, error) {
		obj, made, err := c.updater.Update(ctx, c.info.Name, info, valid, validUpdate, mayCreate, updating)
		created = made
		return obj, err
	}
	result, err = c.run(ctx, func() (runtime.Object, error) {
		result, err := update(updateInfo{begin, []rest.TransformFunc{transform, admitted}})
		if mayLose && isTooLarge(err) {
			return update(updateInfo{begin, []rest.TransformFunc{transform, admitted, withoutManagers}})
		}
		return result, err
	})
	if apierrors.IsTimeout(err) {
		return result, false, err // the write may still be in progress
	}
	return result, created, err
}

// withoutManagers is a rest.TransformFunc that removes the managed fields.
func withoutManagers(_ context.Context, obj, _ runtime.Object) (runtime.Object, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// isTooLarge reports whether etcd has refused an object because of its size.
func isTooLarge(err error) bool {
	switch e := err.(type) {
	case nil:
	case interface {
		Code() codes.Code
		Error() string
	}:
		return e.Code() == codes.InvalidArgument && e.Error() == "etcdserver: request is too large"
	case interface{ GRPCStatus() *status.Status }:
		return e.GRPCStatus().Code() == codes.ResourceExhausted &&
			strings.Contains(e.GRPCStatus().Message(), "trying to send message larger than max")
	}
	return false
}

// isStored reports whether the object exists in the storage.
func isStored(obj runtime.Object) (bool, error) {
	if obj == nil {
		return false, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return m.GetUID() != "", nil
}

// withCreateAuthorization returns valid with an additional check that the caller may create the object: an update of an object
// that does not exist creates it.
func (c *call) withCreateAuthorization(valid rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if c.Scope.Authorizer == nil {
			return apierrors.NewInternalError(errors.New("no authorizer provided, unable to authorize a create on update"))
		}
		caller, _ := request.UserFrom(ctx)
		attributes := authorizer.AttributesRecord{
			User: caller, ResourceRequest: true, Path: c.r.URL.Path, Verb: "create",
			APIGroup: c.Scope.Resource.Group, APIVersion: c.Scope.Resource.Version, Resource: c.Scope.Resource.Resource,
			Namespace: c.info.Namespace, Name: c.info.Name,
		}
		decision, reason, err := c.Scope.Authorizer.Authorize(ctx, attributes)
		switch {
		case decision == authorizer.DecisionAllow:
			return valid(ctx, obj)
		case err != nil:
			return apierrors.NewInternalError(err)
		}
		return responsewriters.ForbiddenStatusError(attributes, reason)
	}
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: metav1.SchemeGroupVersion.String()}
}

// withoutDuplicates removes repeated owner references, with a warning.
func withoutDuplicates(ctx context.Context, m metav1.Object, format string) {
	owners := m.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var twice []string
	seen := make(map[types.UID]bool, len(owners)) // so that many owners are not all compared with one another
	for _, owner := range owners {
		same := func(k metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(k, owner) }
		if seen[owner.UID] && slices.ContainsFunc(kept, same) {
			twice = append(twice, string(owner.UID))
			continue
		}
		seen[owner.UID] = true
		kept = append(kept, owner)
	}
	if len(twice) > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf(format, strings.Join(twice, ", ")))
		m.SetOwnerReferences(kept)
	}
}

// manager returns the name of the field manager.
func (c *call) manager() string { return managed.NameOf(c.options.FieldManager, c.r.UserAgent()) }
