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

// SubresourceOf is a custom subresource of a kind whose hub is T. It is made by
// Action, Part, View or Connect.
type SubresourceOf[T any] interface {
	subresourceOf(parent *T) *define.Subresource
}

// message is a pointer to M that is sent or answered. Its Go type embeds
// metav1.TypeMeta.
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
	// Resource is the resource that the client speaks of, in its version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object that the subresource is of, as it was when the request came.
	// It is the function's own.
	Parent *T
	// Object is what the client sent, with defaults filled in.
	Object *R
	// User is who asks.
	User user.Info
	// DryRun says that nothing will be stored; the function must then have no other
	// effects either.
	DryRun bool

	call *define.Call
}

// Update changes the parent as an update of its main endpoint does: the status stays,
// and the kind's own functions prepare and validate what becomes of it. The kind's
// hooks of Admit see the change, as an Update with the subresource's name, those of
// Mutate do not. change is called with the object as it is stored, and again if
// another writer came first; it must have no other effects. Its error is Update's.
// What it changes is recorded in the managed fields as an Update by the request's field
// manager or, if it names none, by the beginning of its user agent.
//
// What is returned has been stored, unless the request is a dry run, and must not be
// changed. The error is an API status; Conflict says that the parent is another object
// than Parent, or has not the resource version that the client named. ctx must be
// the function's own or come from it.
func (r *ActionRequest[T, R]) Update(ctx context.Context, change func(obj *T) error) (*T, error) {
	return changed[T](r.call.Update(ctx, untyped(change)))
}

// UpdateStatus is Update of the parent's status, as /status does it: all else stays.
// For a kind without /status it is an internal error.
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

// Action describes a custom subresource that takes requests, as eviction and
// binding of a pod do: clients create an R at NAME/name, and get the A that handle
// returns. T is the kind's hub. R embeds metav1.TypeMeta and is registered by the
// package of one of the kind's versions, or by that of MessagesOf, and so is A, unless it is R, T or
// metav1.Status. A body need not say apiVersion and kind. An R that embeds
// metav1.ObjectMeta, too, has the name and namespace of the parent.
//
// Callers need the verb create, or update for what On adds, on the resource with the
// subresource, such as pods/eviction; to be allowed to change the parent is neither
// needed nor enough. An error of handle is the answer if it is or wraps an API status; any other
// is answered with 500. An action that refuses returns one of Invalid, Forbidden, NotFound,
// Conflict, TooManyRequests and Unavailable. handle runs concurrently for different
// requests, and as long as requests may take.
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

// On says which operations there are, instead of Create alone: Create, Update or both.
// With Update, clients PUT an R, which then needs metav1.ObjectMeta; its uid and
// resource version, if it says them, are preconditions on the parent.
func (b *ActionBuilder[T, R]) On(operations ...Operation) *ActionBuilder[T, R] {
	b.declared().Operations = nil
	for _, o := range operations {
		b.declared().Operations = append(b.declared().Operations, admission.Operation(o))
	}
	return b
}

// Validate checks requests before they are handled. An empty list accepts one; others
// are answered with 422.
func (b *ActionBuilder[T, R]) Validate(validate func(ctx context.Context, request *R) field.ErrorList) *ActionBuilder[T, R] {
	b.declared().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*R))
	}
	return b
}

// MessagesOf names the package that declares R, by the function API that annex generate wrote, where that
// is none of the packages of the kind's versions: then R is of the group and version of that package, as the Eviction of
// policy/v1 is that clients create at pods/eviction. A body that says apiVersion and kind must say those. A is
// metav1.Status, or declared by the same package. R has the defaults and the rules of its package. Without
// MessagesOf, the request has the group and version that the client speaks to the kind in.
func (b *ActionBuilder[T, R]) MessagesOf(facts func() api.Facts) *ActionBuilder[T, R] {
	b.declared().Facts = facts
	return b
}

// PartBuilder describes a custom subresource that is a part of a T.
type PartBuilder[T any] struct {
	subresource define.Subresource
}

// Part describes a custom subresource that is a part of the object, as /status is, and the resize of a pod or the approval of
// a CertificateSigningRequest: clients GET, PUT and PATCH the whole T at NAME/name, by apply too. T is the
// kind's hub. take takes over into obj, which is the object as it is stored, what the subresource may change of sent; all
// else stays. It is called again if another writer came first, and must have no other effects.
//
// The result is validated by the kind's markers, tags and Validate, and by Validate of the builder instead of ValidateUpdate. The
// generation rises if it would in an update. The kind's hooks of Admit and Mutate see an Update with the subresource's name.
// Callers need the verbs get, update and patch on the resource with the subresource, such as pods/resize. Appliers come to own
// fields that they send and that take leaves alone.
func Part[T any, PT object[T]](name string, take func(ctx context.Context, obj, sent *T)) *PartBuilder[T] {
	b := &PartBuilder[T]{define.Subresource{Name: name, IsPart: true}}
	if take != nil {
		b.subresource.Take = func(ctx context.Context, obj, sent runtime.Object) { take(ctx, any(obj).(*T), any(sent).(*T)) }
	}
	return b
}

func (b *PartBuilder[T]) subresourceOf(*T) *define.Subresource { return &b.subresource }

// Validate checks what becomes of old. An empty list accepts it; others are answered with 422.
func (b *PartBuilder[T]) Validate(validate func(ctx context.Context, obj, old *T) field.ErrorList) *PartBuilder[T] {
	b.subresource.ValidateChange = updateRule(validate)
	return b
}

// ViewRequest is a request for a view of a T, with the options O.
type ViewRequest[T, O any] struct {
	// Resource is the resource that the client speaks of, in its version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object that the view is of, as it was when the request came. It is
	// the function's own.
	Parent *T
	// Options are what the query says, with defaults filled in.
	Options *O
	// User is who asks.
	User user.Info
}

// ViewBuilder describes a view of a T with options O.
type ViewBuilder[T, O any] struct {
	subresource define.Subresource
}

// View describes a custom subresource that is read, such as a summary: clients GET
// NAME/name, and get the A that look returns, in the media type that they want, as a table too.
// T is the kind's hub. O is what Connect's O may be, and its fields are read from the query
// likewise: a parameter that no field is named after is ignored, as kube-apiserver does, and
// one that cannot be read is answered with 400. A embeds metav1.TypeMeta and is registered by
// the package of one of the kind's versions, unless it is T.
//
// Callers need the verb get on the resource with the subresource, such as pods/summary.
// Admission does not see a read. An error of look is answered as an error of Action's
// function is. look runs concurrently for different requests, as long as requests may take,
// and must change nothing.
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

// ConnectRequest is a request to be connected with a T, with the options O.
type ConnectRequest[T, O any] struct {
	// Resource is the resource that the client speaks of, in its version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object that the subresource is of, as it was when the request came.
	// It is the function's own.
	Parent *T
	// Options are what the query says, with defaults filled in.
	Options *O
	// User is who asks.
	User user.Info
	// Responder answers with an object, or with an error as a Status, in the media type
	// that the client wants. Nothing may be written after it.
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

// Connect describes a custom subresource that connects clients with a handler, as log
// and exec of a pod do: connect looks at a request to NAME/name and returns what
// serves it, which may stream, or take the connection over, until the context ends. T
// is the kind's hub. O embeds metav1.TypeMeta, or it is NoOptions. No package needs to register
// it, but only registered types get generated defaults; every version of the kind has it as a
// kind by its Go name, after which discovery names the subresource. Its fields are read from the query by
// their JSON names, with the generated defaults. They are strings, booleans, numbers,
// metav1.Time, pointers to these, []string and []int32. If *O has a method SetDefaults(), it is called
// before the query is read. A parameter that no field is named
// after is ignored, one that cannot be read is answered with 400.
//
// Methods are GET alone unless Methods says otherwise. Callers need the verb that
// belongs to the method, such as get, on the resource with the subresource, such as
// pods/log. What asks for an upgrade, to a WebSocket or SPDY, needs create as well if POST is one of the
// methods.
//
// A connection has no deadline, unless LongRunning says otherwise, and its context ends
// with the client, when the server stops, or within ten seconds when the caller loses the credential or the
// rights that it has connected with: its cause is an API status then. Plugins of admission see it as CONNECT, and so do
// hooks of AdmitConnect; those of Admit and Mutate do not, and there is no dry run of it. An error of connect is
// answered as an error of Action's function is.
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

// Methods are the HTTP methods that connect, instead of GET alone, such as GET and POST.
func (b *ConnectBuilder[T, O]) Methods(methods ...string) *ConnectBuilder[T, O] {
	b.subresource.Methods = methods
	return b
}

// Subpaths has connect answer what is below NAME/name as well, as the proxy of a pod does, with the
// same permission. O then has a string with the JSON name path, which is what follows NAME/name
// in the path of the request: empty, or something that begins with a slash. It may hold
// dotted and empty elements, as the client wrote them.
func (b *ConnectBuilder[T, O]) Subpaths() *ConnectBuilder[T, O] {
	b.subresource.Subpaths = true
	return b
}

// Answers says that what connections answer with is such an object, sent by the Responder.
// OpenAPI tells clients. Without Answers, or with nil, it says a string, which stands for
// whatever the handler writes, as kube-apiserver does of the exec of a pod. The object is a
// pointer to a Go type that Action's A may be.
func (b *ConnectBuilder[T, O]) Answers(with runtime.Object) *ConnectBuilder[T, O] {
	if t := reflect.TypeOf(with); t != nil {
		b.subresource.Responds = t.Elem()
	}
	return b
}

// LongRunning says which connections take their time, by their options; the default is
// all. The others end at the deadline of ordinary requests and count with them for
// what the server does at a time, and a shutdown waits for them.
func (b *ConnectBuilder[T, O]) LongRunning(is func(options *O) bool) *ConnectBuilder[T, O] {
	b.subresource.LongRunning = func(obj runtime.Object) bool { return is(options[O](obj)) }
	return b
}
