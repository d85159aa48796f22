package annex

import (
	"context"
	"net/http"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
)

// SubresourceOf is a custom subresource of a kind whose hub is T. Action, Part, View and Connect make one.
type SubresourceOf[T any] interface {
	subresourceOf(parent *T) *define.Subresource
}

// message is a pointer to M, the type of a request or response. It embeds metav1.TypeMeta.
type message[M any] interface {
	*M
	runtime.Object
}

// Subresources adds subresources beside /status and /scale to all versions of the kind, in all its groups.
func (k *KindBuilder[T]) Subresources(subresources ...SubresourceOf[T]) *KindBuilder[T] {
	for _, s := range subresources {
		if s == nil {
			k.kind().CustomSubresources = append(k.kind().CustomSubresources, nil)
			continue
		}
		k.kind().CustomSubresources = append(k.kind().CustomSubresources, s.subresourceOf(nil))
	}
	return k
}

// ActionRequest is a request R to an action on a T.
type ActionRequest[T, R any] struct {
	// Operation is Create for a POST and Update for a PUT.
	Operation Operation
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the parent object at the time of the request. The function owns it.
	Parent *T
	// Object is the object sent by the client, with defaults.
	Object *R
	// User is the caller.
	User user.Info
	// DryRun is true if nothing will be stored. The function must then have no side effects.
	DryRun bool

	call *define.Call
}

// Update changes the parent like an update of its main endpoint: the status stays the same, and the kind's own
// functions prepare and validate the result. The kind's Admit hooks see the change as an Update with the name of the
// subresource; its Mutate hooks do not run. change gets the stored object. It is called again after a conflict with
// another writer, and must have no side effects. Update returns its error. The managed fields record the change as an
// Update by the request's field manager or, without one, by the beginning of its user agent.
//
// The returned object is stored, unless the request is a dry run, and is read-only. The error is an API status:
// Conflict if the parent is not the object Parent any more, or does not have the resource version that the client
// named. ctx must be the function's own or derive from it.
func (r *ActionRequest[T, R]) Update(ctx context.Context, change func(obj *T) error) (*T, error) {
	return changed[T](r.call.Update(ctx, untyped(change)))
}

// UpdateStatus is Update of the parent's status, as through /status: all other fields stay the same. For a kind
// without /status it returns an internal error.
func (r *ActionRequest[T, R]) UpdateStatus(ctx context.Context, change func(obj *T) error) (*T, error) {
	return changed[T](r.call.UpdateStatus(ctx, untyped(change)))
}

func untyped[T any](change func(obj *T) error) func(runtime.Object) error {
	return func(obj runtime.Object) error { return change(any(obj).(*T)) }
}

func changed[T any](obj runtime.Object, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return any(obj).(*T), nil
}

// ActionBuilder describes an action on a T with requests R.
type ActionBuilder[T, R any] struct {
	declaredSubresource
}

type declaredSubresource = define.DeclaredSubresource

// Action describes a custom subresource that accepts requests, like eviction and binding of a pod: clients create an R
// at NAME/name, and get the A that handle returns. T is the kind's hub. R embeds metav1.TypeMeta. The package of one
// of the kind's versions, or that of MessagesOf, registers R, and also A, unless A is R, T or metav1.Status. A body
// may omit apiVersion and kind. An R that also embeds metav1.ObjectMeta has the name and namespace of the parent.
//
// Callers need the verb create (and update with On) on the resource with the subresource, such as pods/eviction. The
// permission to change the parent is neither needed nor sufficient. An error of handle becomes the response if it is
// or wraps an API status; any other is answered with 500. To reject a request, return one of Invalid, Forbidden,
// NotFound, Conflict, TooManyRequests and Unavailable. handle runs concurrently for different requests, up to the time
// limit of requests.
func Action[T, R, A any, PT object[T], PR message[R], PA message[A]](
	name string,
	handle func(ctx context.Context, request *ActionRequest[T, R]) (*A, error),
) *ActionBuilder[T, R] {
	b := &ActionBuilder[T, R]{}
	*b.declared() = define.Subresource{
		Name:       name,
		Object:     reflect.TypeFor[R](),
		Answer:     reflect.TypeFor[A](),
		Operations: []admission.Operation{admission.Create},
	}
	if handle == nil {
		return b
	}
	b.declared().Handle = func(ctx context.Context, call *define.Call) (runtime.Object, error) {
		answer, err := handle(ctx, &ActionRequest[T, R]{
			Operation: Operation(call.Operation),
			Resource:  call.Resource,
			Namespace: call.Namespace,
			Name:      call.Name,
			Parent:    any(call.Parent).(*T),
			Object:    any(call.Object).(*R),
			User:      call.User,
			DryRun:    call.DryRun,
			call:      call,
		})
		return PA(answer), err
	}
	return b
}

func (b *ActionBuilder[T, R]) declared() *define.Subresource {
	return define.SubresourceIn(&b.declaredSubresource)
}

func (b *ActionBuilder[T, R]) subresourceOf(*T) *define.Subresource { return b.declared() }

// On sets the operations, instead of Create alone: Create, Update or both. With Update, clients PUT an R, which then
// needs metav1.ObjectMeta; its uid and resource version, if set, are preconditions on the parent.
func (b *ActionBuilder[T, R]) On(operations ...Operation) *ActionBuilder[T, R] {
	b.declared().Operations = nil
	for _, o := range operations {
		b.declared().Operations = append(b.declared().Operations, admission.Operation(o))
	}
	return b
}

// Validate checks requests before handle runs. An empty list accepts the request; otherwise the response is 422.
func (b *ActionBuilder[T, R]) Validate(validate func(ctx context.Context, request *R) field.ErrorList) *ActionBuilder[T, R] {
	b.declared().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*R))
	}
	return b
}

// MessagesOf sets the package of R, by the function API that annex generate wrote, if this is not a package of the
// kind's versions. R then has the group and version of that package, like the Eviction of policy/v1 that clients
// create at pods/eviction. A body with apiVersion and kind must have those of R. A is metav1.Status, or a type of the
// same package. R has the defaults and the validation rules of its package. Without MessagesOf, the request has the
// group and version in which the client accesses the kind.
func (b *ActionBuilder[T, R]) MessagesOf(facts func() api.Facts) *ActionBuilder[T, R] {
	b.declared().Facts = facts
	return b
}

// PartBuilder describes a custom subresource for a part of a T.
type PartBuilder[T any] struct {
	subresource define.Subresource
}

// Part describes a custom subresource for a part of the object, like /status, the resize of a pod or the approval of a
// CertificateSigningRequest: clients GET, PUT and PATCH the whole T at NAME/name, also by apply. T is the kind's hub.
// take copies the fields that the subresource may change from sent into obj, the stored object; all other fields stay
// the same. It is called again after a conflict with another writer, and must have no side effects.
//
// The kind's markers, tags and Validate validate the result, and Validate of the builder instead of ValidateUpdate.
// The generation increases as in an update. The kind's Admit and Mutate hooks see an Update with the name of the
// subresource. Callers need the verbs get, update and patch on the resource with the subresource, such as pods/resize.
// Appliers own the fields that they send, even fields that take ignores.
func Part[T any, PT object[T]](name string, take func(ctx context.Context, obj, sent *T)) *PartBuilder[T] {
	b := &PartBuilder[T]{define.Subresource{Name: name, IsPart: true}}
	if take != nil {
		b.subresource.Take = func(ctx context.Context, obj, sent runtime.Object) { take(ctx, any(obj).(*T), any(sent).(*T)) }
	}
	return b
}

func (b *PartBuilder[T]) subresourceOf(*T) *define.Subresource { return &b.subresource }

// Validate checks the change from old to obj. An empty list accepts it; otherwise the response is 422.
func (b *PartBuilder[T]) Validate(validate func(ctx context.Context, obj, old *T) field.ErrorList) *PartBuilder[T] {
	b.subresource.ValidateChange = updateRule(validate)
	return b
}

// ViewRequest is a request for a view of a T, with the options O.
type ViewRequest[T, O any] struct {
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the viewed object at the time of the request. The function owns it.
	Parent *T
	// Options are the options in the query, with defaults.
	Options *O
	// User is the caller.
	User user.Info
}

// ViewBuilder describes a view of a T with options O.
type ViewBuilder[T, O any] struct {
	subresource define.Subresource
}

// View describes a custom subresource for reading, such as a summary: clients GET NAME/name, and get the A that look
// returns, in the requested media type, also as a table. T is the kind's hub. O has the form of Connect's O, and its
// fields are read from the query in the same way: a parameter without a field of its name is ignored, as in
// kube-apiserver, and an invalid value is answered with 400. A embeds metav1.TypeMeta. The package of one of the
// kind's versions registers it, unless it is T.
//
// Callers need the verb get on the resource with the subresource, such as pods/summary. Admission does not see reads.
// An error of look is answered like an error of Action's function. look runs concurrently for different requests, up
// to the time limit of requests, and must not change anything.
func View[T, O, A any, PT object[T], PO message[O], PA message[A]](
	name string,
	look func(ctx context.Context, request *ViewRequest[T, O]) (*A, error),
) *ViewBuilder[T, O] {
	b := &ViewBuilder[T, O]{define.Subresource{Name: name, IsView: true, Answer: reflect.TypeFor[A]()}}
	if t := reflect.TypeFor[O](); t != reflect.TypeFor[NoOptions]() {
		b.subresource.Object = t
	}
	if look == nil {
		return b
	}
	b.subresource.Look = func(ctx context.Context, v *define.View) (runtime.Object, error) {
		answer, err := look(ctx, &ViewRequest[T, O]{
			Resource:  v.Resource,
			Namespace: v.Namespace,
			Name:      v.Name,
			Parent:    any(v.Parent).(*T),
			Options:   options[O](v.Options),
			User:      v.User,
		})
		return PA(answer), err
	}
	return b
}

func (b *ViewBuilder[T, O]) subresourceOf(*T) *define.Subresource { return &b.subresource }

// ConnectRequest is a request for a connection with a T, with the options O.
type ConnectRequest[T, O any] struct {
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the parent object at the time of the request. The function owns it.
	Parent *T
	// Options are the options in the query, with defaults.
	Options *O
	// User is the caller.
	User user.Info
	// Responder answers with an object, or with an error as a Status, in the requested media type. Write nothing after
	// it.
	Responder rest.Responder
}

// NoOptions are the options of a view or a connection without options.
type NoOptions struct {
	metav1.TypeMeta
}

// DeepCopyObject returns a copy.
func (o *NoOptions) DeepCopyObject() runtime.Object { return &NoOptions{o.TypeMeta} }

// ConnectBuilder describes a custom subresource of a T that connects, with options O.
type ConnectBuilder[T, O any] struct {
	subresource define.Subresource
}

// Connect describes a custom subresource that connects clients with a handler, like log and exec of a pod: connect
// gets a request to NAME/name and returns the handler for it, which may stream, or take the connection over, until the
// context ends. T is the kind's hub. O embeds metav1.TypeMeta, or it is NoOptions. No package needs to register O, but
// only registered types get generated defaults. Every version of the kind has O as a kind with its Go name, which
// discovery shows for the subresource. The fields of O are read from the query by their JSON names, with the generated
// defaults. They are strings, booleans, numbers, metav1.Time, pointers to these, []string and []int32. A method
// SetDefaults() of *O is called before the query is read. A parameter without a field of its name is ignored; an
// invalid value is answered with 400.
//
// The only method is GET, unless Methods sets others. Callers need the verb for the method, such as get, on the
// resource with the subresource, such as pods/log. An upgrade request, to a WebSocket or SPDY, also needs create if
// POST is one of the methods.
//
// A connection has no deadline, unless LongRunning sets one. Its context ends when the client disconnects, when the
// server stops, or within ten seconds after the caller loses the credential or the rights of the connection; the cause
// is then an API status. Admission plugins see a connection as CONNECT, and so do AdmitConnect hooks; Admit and Mutate
// hooks do not run, and a connection cannot be a dry run. An error of connect is answered like an error of Action's
// function.
func Connect[T, O any, PT object[T], PO message[O]](
	name string,
	connect func(ctx context.Context, request *ConnectRequest[T, O]) (http.Handler, error),
) *ConnectBuilder[T, O] {
	b := &ConnectBuilder[T, O]{define.Subresource{Name: name, Methods: []string{http.MethodGet}}}
	if t := reflect.TypeFor[O](); t != reflect.TypeFor[NoOptions]() {
		b.subresource.Object = t
	}
	if connect == nil {
		return b
	}
	b.subresource.Connect = func(ctx context.Context, c *define.Connection) (http.Handler, error) {
		return connect(ctx, &ConnectRequest[T, O]{
			Resource:  c.Resource,
			Namespace: c.Namespace,
			Name:      c.Name,
			Parent:    any(c.Parent).(*T),
			Options:   options[O](c.Options),
			User:      c.User,
			Responder: c.Responder,
		})
	}
	return b
}

func options[O any](obj runtime.Object) *O {
	if o, ok := any(obj).(*O); ok {
		return o
	}
	return new(O)
}

func (b *ConnectBuilder[T, O]) subresourceOf(*T) *define.Subresource { return &b.subresource }

// Methods sets the HTTP methods that connect, instead of GET alone, such as GET and POST.
func (b *ConnectBuilder[T, O]) Methods(methods ...string) *ConnectBuilder[T, O] {
	b.subresource.Methods = methods
	return b
}

// Subpaths extends connect to all paths below NAME/name, as with the proxy of a pod, under the same permission. O then
// has a string with the JSON name path, which gets the rest of the request's path behind NAME/name: empty, or
// beginning with a slash. It may contain dotted and empty elements, as sent by the client.
func (b *ConnectBuilder[T, O]) Subpaths() *ConnectBuilder[T, O] {
	b.subresource.Subpaths = true
	return b
}

// Answers declares the type of the object that connections return through the Responder, for OpenAPI. Without Answers,
// or with nil, OpenAPI declares a string, which stands for any output of the handler, as kube-apiserver declares for
// the exec of a pod. The object is a pointer to a Go type that is allowed for Action's A.
func (b *ConnectBuilder[T, O]) Answers(with runtime.Object) *ConnectBuilder[T, O] {
	if t := reflect.TypeOf(with); t != nil {
		b.subresource.Responds = t.Elem()
	}
	return b
}

// LongRunning reports, by its options, whether a connection is long-running; the default is all. Other connections end
// at the deadline of ordinary requests and count as requests in flight, and a shutdown waits for them.
func (b *ConnectBuilder[T, O]) LongRunning(is func(options *O) bool) *ConnectBuilder[T, O] {
	b.subresource.LongRunning = func(obj runtime.Object) bool { return is(options[O](obj)) }
	return b
}
