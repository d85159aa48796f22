package stream

import (
	"context"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/server/streams"
)

// AttachOptions say what clients are attached to, by the names that those of pods have.
type AttachOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Stdin says that the client sends input; the default is false.
	Stdin bool `json:"stdin,omitempty"`
	// Stdout and Stderr say that the client wants output; the default is true. With a TTY all
	// of it is Stdout.
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
	// TTY says that the client is a terminal and wants one; the default is false.
	TTY bool `json:"tty,omitempty"`
	// Container is what clients are attached to.
	Container string `json:"container,omitempty"`
}

// SetDefaults asks for output.
func (o *AttachOptions) SetDefaults() { o.Stdout, o.Stderr = true, true }

// DeepCopyObject returns a copy.
func (o *AttachOptions) DeepCopyObject() runtime.Object {
	copied := *o
	return &copied
}

// SwaggerDoc describes the options in OpenAPI.
func (AttachOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"stdin":     "Send to the standard input of what runs. Defaults to false.",
		"stdout":    "Receive the standard output of what runs. Defaults to true.",
		"stderr":    "Receive the standard error of what runs. Defaults to true.",
		"tty":       "What runs has a terminal. Defaults to false.",
		"container": "What to attach to. Defaults to the first container.",
	}
}

// AttachRequest is a request to be attached.
type AttachRequest[T any] struct {
	Request[T]
	Options AttachOptions
}

// AttachBuilder describes a subresource of a T that attaches clients to what runs.
type AttachBuilder[T any] struct {
	annex.SubresourceOf[T]
	commands commands[T, AttachRequest[T]]
}

// Attach describes a subresource that attaches clients to what runs already, as attach of a pod
// does. attach returns when that has ended, with an ExitError as Exec's function does, or when the
// context does; it runs concurrently for different sessions, of which one object may have several.
func Attach[T any, PT object[T]](name string, attach func(ctx context.Context, r *AttachRequest[T], s Streams) error) *AttachBuilder[T] {
	if attach == nil {
		return attachBuilder[T, PT](name, nil)
	}
	return attachBuilder[T, PT](name, func(_ context.Context, r *AttachRequest[T]) (streams.Run, error) {
		return inProcess(r.Options.TTY, func(ctx context.Context, s Streams) error { return attach(ctx, r, s) }), nil
	})
}

// AttachAt is Attach by a remote agent that speaks SPDY as a kubelet does. locate says where it
// is for a request; its error is the answer to the request. A URL without a query gets the
// options as one, by the names that those of pods have; a kubelet wants other names.
func AttachAt[T any, PT object[T]](
	name string,
	locate func(ctx context.Context, r *AttachRequest[T]) (*Backend, error),
) *AttachBuilder[T] {
	if locate == nil {
		return attachBuilder[T, PT](name, nil)
	}
	return attachBuilder[T, PT](name, commandAt(locate, func(r *AttachRequest[T]) commandOptions { return &r.Options }))
}

func attachBuilder[T any, PT object[T]](
	name string,
	command func(ctx context.Context, r *AttachRequest[T]) (streams.Run, error),
) *AttachBuilder[T] {
	b := new(AttachBuilder[T])
	if command == nil {
		b.SubresourceOf = annex.Connect[T, AttachOptions, PT](name, nil).Methods(upgradeable...)
		return b
	}
	b.SubresourceOf = annex.Connect[T, AttachOptions, PT](
		name,
		func(ctx context.Context, c *annex.ConnectRequest[T, AttachOptions]) (http.Handler, error) {
			r := &AttachRequest[T]{requestOf(c), *c.Options}
			return b.commands.serve(ctx, c.Responder.Error, r, &r.Request, &r.Options, command)
		},
	).Methods(upgradeable...)
	return b
}

func (o *AttachOptions) complete(choose func(string) (string, error)) (err error) {
	o.Stderr = o.Stderr && !o.TTY
	o.Container, err = choose(o.Container)
	return err
}

func (o *AttachOptions) query() url.Values {
	query := streams.Query(o.wanted())
	if o.Container != "" {
		query.Set("container", o.Container)
	}
	return query
}

func (*AttachOptions) mistake() error { return nil }

func (o *AttachOptions) wanted() streams.Wanted {
	return streams.Wanted{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
}

// Containers says which containers an object has. Requests that name none get the first, and those
// that name another are refused with 400, as are all when there are none. Without Containers, any name is handed on.
func (b *AttachBuilder[T]) Containers(of func(obj *T) []string) *AttachBuilder[T] {
	b.commands.containers = of
	return b
}

// Check looks at a request before it is upgraded. Its error is the answer, as that of Connect's
// function is.
func (b *AttachBuilder[T]) Check(check func(ctx context.Context, r *AttachRequest[T]) error) *AttachBuilder[T] {
	b.commands.check = check
	return b
}

// Idle ends sessions in which nothing is sent for so long. The default, and zero, is four hours;
// negative is no limit.
func (b *AttachBuilder[T]) Idle(d time.Duration) *AttachBuilder[T] {
	b.commands.limits.idle = d
	return b
}

// Total ends sessions that take so long. The default is no limit, and so is what is not positive.
func (b *AttachBuilder[T]) Total(d time.Duration) *AttachBuilder[T] {
	b.commands.limits.total = d
	return b
}
