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

// SubresourceOf is a custom subresource of a kind whose hub is T. Action, Part, View and Connect create one.
type SubresourceOf[T any] interface {
	subresourceOf(parent *T) *define.Subresource
}

// message is a pointer to M, the type of a request or response. M embeds metav1.TypeMeta.
type message[M any] interface {
	*M
	runtime.Object
}

// Subresources adds subresources beside /status and /scale. All versions of the kind,
// in all its groups, have them.
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
	// Parent is the object of the subresource as of the start of the request. The function owns it.
	Parent *T
	// Object is the client's request with defaults filled in.
	Object *R
	// User is the caller.
	User user.Info
	// DryRun is set if nothing will be stored. The function must then have no other side effects.
	DryRun bool

	call *define.Call
}

// Update changes the parent like an update of its main endpoint: the status stays, and the kind's functions prepare
// and validate the result. The kind's hooks of Admit see the change as an Update with the subresource's name; hooks
// of Mutate do not run. change gets the stored object. It is called again if another write came first, so it must
// have no other effects. Update returns its error. The managed fields record the changed fields as an Update by the
// request's field manager or, if it names none, by the beginning of its user agent.
//
// The returned object has been stored, unless the request is a dry run, and must not be changed. The error is an
// API status; Conflict means that the parent is another object than Parent, or does not have the resource version
// that the client named. ctx must be the function's own or derived from it.
func (r *ActionRequest[T, R]) Update(ctx context.Context, change func(obj *T) error) (*T, error) {
	return changed[T](r.call.Update(ctx, untyped(change)))
}

// UpdateStatus changes the parent's status, like an update of /status: all other fields stay. For a kind without
// /status it returns an internal error. Otherwise it works like Update.
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

// ActionBuilder describes an action on a T that takes requests R.
type ActionBuilder[T, R any] struct {
	declaredSubresource
}

type declaredSubresource = define.DeclaredSubresource

// Action describes a custom subresource that takes requests, like eviction and binding of a pod: clients create an
// R at NAME/name, and get the A that handle returns. T is the kind's hub. R embeds metav1.TypeMeta. It is
// registered by the package of one of the kind's versions, or by that of MessagesOf, and so is A, unless it is R, T
// or metav1.Status. A request body may omit apiVersion and kind. If R also embeds metav1.ObjectMeta, it has the
// name and namespace of the parent.
//
// Callers need the verb create, or update for operations that On adds, on the resource with the subresource, such
// as pods/eviction; permission to change the parent is neither required nor sufficient. An error of handle is the
// response if it is or wraps an API status; any other error becomes a 500. To reject a request, handle returns one
// of Invalid, Forbidden, NotFound, Conflict, TooManyRequests and Unavailable. handle runs concurrently for
// different requests, for as long as requests may take.
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

// On sets the operations, instead of Create alone: Create, Update or both. With Update, clients PUT an R, which
// then needs metav1.ObjectMeta; if its uid and resource version are set, they are preconditions on the parent.
func (b *ActionBuilder[T, R]) On(operations ...Operation) *ActionBuilder[T, R] {
	b.declared().Operations = nil
	for _, o := range operations {
		b.declared().Operations = append(b.declared().Operations, admission.Operation(o))
	}
	return b
}

// Validate checks requests before handle. An empty list accepts the request; otherwise the response is a 422.
func (b *ActionBuilder[T, R]) Validate(validate func(ctx context.Context, request *R) field.ErrorList) *ActionBuilder[T, R] {
	b.declared().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*R))
	}
	return b
}

// MessagesOf names the package that declares R, by the function API that annex generate wrote, if it is none of the
// packages of the kind's versions. R then has the group and version of that package: clients create, for example,
// the Eviction of policy/v1 at pods/eviction. If a body has apiVersion and kind, they must be those of R. A is
// metav1.Status, or declared by the same package. R has the defaults and the rules of its package. Without
// MessagesOf, the request has the group and version in which the client addresses the kind.
func (b *ActionBuilder[T, R]) MessagesOf(facts func() api.Facts) *ActionBuilder[T, R] {
	b.declared().Facts = facts
	return b
}

// PartBuilder describes a custom subresource that is a part of a T.
type PartBuilder[T any] struct {
	subresource define.Subresource
}

// Part describes a custom subresource that is a part of the object, like /status, the resize of a pod or the
// approval of a CertificateSigningRequest: clients GET, PUT and PATCH the whole T at NAME/name, also by apply. T is
// the kind's hub. take copies the fields that the subresource may change from sent to obj, which is the stored
// object; all other fields stay. It is called again if another write came first, so it must have no other effects.
//
// The result is validated by the kind's markers, tags and Validate, and by Validate of the builder instead of
// ValidateUpdate. The generation rises as it would in an update. The kind's hooks of Admit and Mutate see an Update
// with the subresource's name. Callers need the verbs get, update and patch on the resource with the subresource,
// such as pods/resize. Appliers come to own fields that they send, even if take ignores these fields.
func Part[T any, PT object[T]](name string, take func(ctx context.Context, obj, sent *T)) *PartBuilder[T] {
	b := &PartBuilder[T]{define.Subresource{Name: name, IsPart: true}}
	if take != nil {
		b.subresource.Take = func(ctx context.Context, obj, sent runtime.Object) { take(ctx, any(obj).(*T), any(sent).(*T)) }
	}
	return b
}

func (b *PartBuilder[T]) subresourceOf(*T) *define.Subresource { return &b.subresource }

// Validate checks the result against old. An empty list accepts it; otherwise the response is a 422.
func (b *PartBuilder[T]) Validate(validate func(ctx context.Context, obj, old *T) field.ErrorList) *PartBuilder[T] {
	b.subresource.ValidateChange = updateRule(validate)
	return b
}

// ViewRequest is a request for a view of a T, with the options O.
type ViewRequest[T, O any] struct {
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object of the view as of the start of the request. The function owns it.
	Parent *T
	// Options are read from the query, with defaults filled in.
	Options *O
	// User is the caller.
	User user.Info
}

// ViewBuilder describes a view of a T with options O.
type ViewBuilder[T, O any] struct {
	subresource define.Subresource
}

// View describes a custom subresource that is only read, such as a summary: clients GET NAME/name, and get the A
// that look returns, in the requested media type or as a table. T is the kind's hub. O has the same restrictions as
// the O of Connect, and its fields are read from the query in the same way: a parameter without a field is ignored,
// as in kube-apiserver, and a malformed parameter gets a 400. A embeds metav1.TypeMeta and is registered by the
// package of one of the kind's versions, unless it is T.
//
// Callers need the verb get on the resource with the subresource, such as pods/summary. Admission does not see a
// read. Errors of look are treated like those of Action's function. look runs concurrently for different requests,
// for as long as requests may take, and must not change anything.
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

// ConnectRequest is a request to connect with a T, with the options O.
type ConnectRequest[T, O any] struct {
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object of the subresource as of the start of the request. The function owns it.
	Parent *T
	// Options are read from the query, with defaults filled in.
	Options *O
	// User is the caller.
	User user.Info
	// Responder responds with an object, or with an error as a Status, in the requested media type. Nothing may be
	// written after it.
	Responder rest.Responder
}

// NoOptions are the options of a view or a connection that has none.
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
// reads a request to NAME/name and returns its handler, which may stream, or take over the connection, until the
// context ends. T is the kind's hub. O embeds metav1.TypeMeta, or is NoOptions. No package needs to register it,
// but only registered types have generated defaults. Every version of the kind registers it as a kind with its Go
// name, by which discovery names the subresource. Its fields are read from the query by their JSON names, after the
// generated defaults are set. They are strings, booleans, numbers, metav1.Time, pointers to these, []string and
// []int32. If *O has a method SetDefaults(), it is called before the query is read. A parameter without a field is
// ignored, and a malformed parameter gets a 400.
//
// The only method is GET unless Methods sets others. Callers need the verb of the method, such as get, on the
// resource with the subresource, such as pods/log. A request to upgrade to a WebSocket or SPDY also needs create if
// POST is one of the methods.
//
// A connection has no deadline, unless LongRunning sets one. Its context ends with the client, when the server
// stops, or within ten seconds after the caller loses the credential or the permission of the request; the cause is
// then an API status. Admission plugins see the connection as CONNECT, and hooks of AdmitConnect run; hooks of
// Admit and Mutate do not, and there are no dry runs. Errors of connect are treated like those of Action's
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

// Subpaths makes connect also serve the paths below NAME/name, like the proxy of a pod, with the same permission. O
// then has a string with the JSON name path: the rest of the request's path after NAME/name. It is empty or begins
// with a slash. It may contain dotted and empty elements, as the client wrote them.
func (b *ConnectBuilder[T, O]) Subpaths() *ConnectBuilder[T, O] {
	b.subresource.Subpaths = true
	return b
}

// Answers sets the type of the object with which connections respond through the Responder, for OpenAPI. Without
// Answers, or with nil, the OpenAPI type is a string for any output of the handler, as kube-apiserver has it for
// the exec of a pod. The object is a pointer to a Go type that may be the A of an Action.
func (b *ConnectBuilder[T, O]) Answers(with runtime.Object) *ConnectBuilder[T, O] {
	if t := reflect.TypeOf(with); t != nil {
		b.subresource.Responds = t.Elem()
	}
	return b
}

// LongRunning decides by the options which connections are long-running; by default all are. Other connections end
// at the deadline of ordinary requests, count as requests in flight, and delay a shutdown until they end.
func (b *ConnectBuilder[T, O]) LongRunning(is func(options *O) bool) *ConnectBuilder[T, O] {
	b.subresource.LongRunning = func(obj runtime.Object) bool { return is(options[O](obj)) }
	return b
}
