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

// AttachOptions are the options of an attach request. Their names in the query are those of a pod's attach.
type AttachOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Stdin asks for an input stream from the client; the default is false.
	Stdin bool `json:"stdin,omitempty"`
	// Stdout and Stderr ask for output streams to the client; the default is true. With a TTY all output goes to
	// Stdout.
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
	// TTY asks for a terminal, which the client has, too; the default is false.
	TTY bool `json:"tty,omitempty"`
	// Container names the container to attach to.
	Container string `json:"container,omitempty"`
}

// SetDefaults turns both output streams on.
func (o *AttachOptions) SetDefaults() { o.Stdout, o.Stderr = true, true }

// DeepCopyObject returns a copy.
func (o *AttachOptions) DeepCopyObject() runtime.Object {
	copied := *o
	return &copied
}

// SwaggerDoc describes the options in OpenAPI.
func (AttachOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"stdin":     "Send to the standard input of the process. Defaults to false.",
		"stdout":    "Receive the standard output of the process. Defaults to true.",
		"stderr":    "Receive the standard error of the process. Defaults to true.",
		"tty":       "The process has a terminal. Defaults to false.",
		"container": "Container to attach to. Defaults to the first container.",
	}
}

// AttachRequest is a request to be attached.
type AttachRequest[T any] struct {
	Request[T]
	Options AttachOptions
}

// AttachBuilder describes a subresource of a T that attaches clients to a running process.
type AttachBuilder[T any] struct {
	annex.SubresourceOf[T]
	commands commands[T, AttachRequest[T]]
}

// Attach describes a subresource that attaches clients to a process that already runs, as a pod's attach does. attach
// returns when the process has ended, with an ExitError as Exec's function does, or when its context ends. It is
// called concurrently for different sessions; one object may have several.
func Attach[T any, PT object[T]](name string, attach func(ctx context.Context, r *AttachRequest[T], s Streams) error) *AttachBuilder[T] {
	if attach == nil {
		return attachBuilder[T, PT](name, nil)
	}
	return attachBuilder[T, PT](name, func(_ context.Context, r *AttachRequest[T]) (streams.Run, error) {
		return inProcess(r.Options.TTY, func(ctx context.Context, s Streams) error { return attach(ctx, r, s) }), nil
	})
}

// AttachAt is Attach served by a remote agent that speaks SPDY as a kubelet does. locate returns the agent of a
// request; an error of locate is the answer to the request. A URL without a query gets the options as its query,
// under the names of a pod's options; a kubelet expects other names.
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

func (o *AttachOptions) wanted() streams.RequestedStreams {
	return streams.RequestedStreams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
}

// Containers sets the function that lists the containers of an object. A request without a container gets the first.
// A request for an unknown container is refused with 400, and so is every request if the list is empty. Without
// Containers, any name is passed on.
func (b *AttachBuilder[T]) Containers(of func(obj *T) []string) *AttachBuilder[T] {
	b.commands.containers = of
	return b
}

// Check sets a function that runs before a request is upgraded. Its error is the answer to the request, as an error
// of Connect's function is.
func (b *AttachBuilder[T]) Check(check func(ctx context.Context, r *AttachRequest[T]) error) *AttachBuilder[T] {
	b.commands.check = check
	return b
}

// Idle ends a session after d without traffic. Zero is the default, four hours; a negative d sets no limit.
func (b *AttachBuilder[T]) Idle(d time.Duration) *AttachBuilder[T] {
	b.commands.limits.idle = d
	return b
}

// Total bounds the duration of a session. The default, zero, and a negative d set no limit.
func (b *AttachBuilder[T]) Total(d time.Duration) *AttachBuilder[T] {
	b.commands.limits.total = d
	return b
}
