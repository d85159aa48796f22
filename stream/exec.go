package stream

import (
	"context"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/server/streams"
)

// ExecOptions are the options of an exec request. Their names in the query are those of a pod's exec.
type ExecOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Stdin asks for an input stream from the client; the default is false.
	Stdin bool `json:"stdin,omitempty"`
	// Stdout and Stderr ask for output streams to the client; the default is true. With a TTY all output goes to
	// Stdout.
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
	// TTY asks for a terminal, which the client has, too; the default is false.
	TTY bool `json:"tty,omitempty"`
	// Container names the container in which the command runs.
	Container string `json:"container,omitempty"`
	// Command holds the command and its arguments. It is not run in a shell. A session without a command is refused
	// with 400.
	Command []string `json:"command,omitempty"`
}

// SetDefaults turns both output streams on.
func (o *ExecOptions) SetDefaults() { o.Stdout, o.Stderr = true, true }

// DeepCopyObject returns a copy.
func (o *ExecOptions) DeepCopyObject() runtime.Object {
	copied := *o
	copied.Command = append([]string(nil), o.Command...)
	return &copied
}

// SwaggerDoc describes the options in OpenAPI.
func (ExecOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"stdin":     "Redirect the standard input stream of the command. Defaults to false.",
		"stdout":    "Redirect the standard output stream of the command. Defaults to true.",
		"stderr":    "Redirect the standard error stream of the command. Defaults to true.",
		"tty":       "Run the command in a terminal. Defaults to false.",
		"container": "Container in which to run the command. Defaults to the first container.",
		"command":   "The command and its arguments, one for each parameter. It is not run in a shell.",
	}
}

// ExecRequest is a request to run a command.
type ExecRequest[T any] struct {
	Request[T]
	Options ExecOptions
}

// ExecBuilder describes a subresource of a T that runs commands.
type ExecBuilder[T any] struct {
	annex.SubresourceOf[T]
	commands commands[T, ExecRequest[T]]
}

// Exec describes a subresource that runs commands, as a pod's exec does. run runs one command and returns when it has
// ended; it is called concurrently for different sessions. An ExitError gives the client the command's exit code. An
// error that is or wraps an API status reaches the client as that status, any other as an internal error. The session
// has begun by the time that run is called, so only Check can refuse a request with an ordinary answer.
func Exec[T any, PT object[T]](name string, run func(ctx context.Context, r *ExecRequest[T], s Streams) error) *ExecBuilder[T] {
	if run == nil {
		return execBuilder[T, PT](name, nil)
	}
	return execBuilder[T, PT](name, func(_ context.Context, r *ExecRequest[T]) (streams.Run, error) {
		return inProcess(r.Options.TTY, func(ctx context.Context, s Streams) error { return run(ctx, r, s) }), nil
	})
}

// ExecAt is Exec served by a remote agent that speaks SPDY as a kubelet does. locate returns the agent that runs the
// command of a request; an error of locate is the answer to the request. A URL without a query gets the options as
// its query, under the names of a pod's options; a kubelet expects other names.
func ExecAt[T any, PT object[T]](name string, locate func(ctx context.Context, r *ExecRequest[T]) (*Backend, error)) *ExecBuilder[T] {
	if locate == nil {
		return execBuilder[T, PT](name, nil)
	}
	return execBuilder[T, PT](name, commandAt(locate, func(r *ExecRequest[T]) commandOptions { return &r.Options }))
}

func execBuilder[T any, PT object[T]](
	name string,
	command func(ctx context.Context, r *ExecRequest[T]) (streams.Run, error),
) *ExecBuilder[T] {
	b := new(ExecBuilder[T])
	if command == nil {
		b.SubresourceOf = annex.Connect[T, ExecOptions, PT](name, nil).Methods(upgradeable...)
		return b
	}
	b.SubresourceOf = annex.Connect[T, ExecOptions, PT](
		name,
		func(ctx context.Context, c *annex.ConnectRequest[T, ExecOptions]) (http.Handler, error) {
			r := &ExecRequest[T]{requestOf(c), *c.Options}
			return b.commands.serve(ctx, c.Responder.Error, r, &r.Request, &r.Options, command)
		},
	).Methods(upgradeable...)
	return b
}

func (o *ExecOptions) complete(choose func(string) (string, error)) (err error) {
	o.Stderr = o.Stderr && !o.TTY
	o.Container, err = choose(o.Container)
	return err
}

func (o *ExecOptions) query() url.Values {
	query := streams.Query(o.wanted())
	query["command"] = o.Command
	if o.Container != "" {
		query.Set("container", o.Container)
	}
	return query
}

func (o *ExecOptions) mistake() error {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return apierrors.NewBadRequest("you must specify a command, with one parameter command for each argument")
	}
	return nil
}

func (o *ExecOptions) wanted() streams.RequestedStreams {
	return streams.RequestedStreams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
}

// Containers sets the function that lists the containers of an object. A request without a container gets the first.
// A request for an unknown container is refused with 400, and so is every request if the list is empty. Without
// Containers, any name is passed on.
func (b *ExecBuilder[T]) Containers(of func(obj *T) []string) *ExecBuilder[T] {
	b.commands.containers = of
	return b
}

// Check sets a function that runs before a request is upgraded. Its error is the answer to the request, as an error
// of Connect's function is: it may, for example, answer a command for a stopped object with a conflict.
func (b *ExecBuilder[T]) Check(check func(ctx context.Context, r *ExecRequest[T]) error) *ExecBuilder[T] {
	b.commands.check = check
	return b
}

// Idle ends a session after d without traffic. Zero is the default, four hours; a negative d sets no limit.
func (b *ExecBuilder[T]) Idle(d time.Duration) *ExecBuilder[T] {
	b.commands.limits.idle = d
	return b
}

// Total bounds the duration of a session. The default, zero, and a negative d set no limit.
func (b *ExecBuilder[T]) Total(d time.Duration) *ExecBuilder[T] {
	b.commands.limits.total = d
	return b
}
