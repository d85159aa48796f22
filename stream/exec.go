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

// ExecOptions say which command is run, by the names that those of pods have.
type ExecOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Stdin says that the client sends input; the default is false.
	Stdin bool `json:"stdin,omitempty"`
	// Stdout and Stderr say that the client wants output; the default is true. With a TTY all
	// of it is Stdout.
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
	// TTY says that the client is a terminal and wants one; the default is false.
	TTY bool `json:"tty,omitempty"`
	// Container is where the command is run.
	Container string `json:"container,omitempty"`
	// Command is the command and its arguments, not in a shell. A session has one: without it a
	// request is refused with 400.
	Command []string `json:"command,omitempty"`
}

// SetDefaults asks for output.
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
		"container": "Where to run the command. Defaults to the first container.",
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

// Exec describes a subresource that runs commands, as exec of a pod does. run runs one and returns
// when it has ended; it runs concurrently for different sessions. An ExitError tells the client the
// command's exit code. An error that is or wraps an API status reaches the client as that status, any other as an internal error.
// By then the session has begun: what refuses a request with an answer is Check.
func Exec[T any, PT object[T]](name string, run func(ctx context.Context, r *ExecRequest[T], s Streams) error) *ExecBuilder[T] {
	if run == nil {
		return execBuilder[T, PT](name, nil)
	}
	return execBuilder[T, PT](name, func(_ context.Context, r *ExecRequest[T]) (streams.Run, error) {
		return inProcess(r.Options.TTY, func(ctx context.Context, s Streams) error { return run(ctx, r, s) }), nil
	})
}

// ExecAt is Exec by a remote agent that speaks SPDY as a kubelet does. locate says where it runs
// the command of a request; its error is the answer to the request. A URL without a query gets the
// options as one, by the names that those of pods have; a kubelet wants other names.
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
		return apierrors.NewBadRequest("you must specify a command, one parameter command for each of its words")
	}
	return nil
}

func (o *ExecOptions) wanted() streams.Wanted {
	return streams.Wanted{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
}

// Containers says which containers an object has. Requests that name none get the first, and those
// that name another are refused with 400, as are all when there are none. Without Containers, any name is handed on.
func (b *ExecBuilder[T]) Containers(of func(obj *T) []string) *ExecBuilder[T] {
	b.commands.containers = of
	return b
}

// Check looks at a request before it is upgraded. Its error is the answer, as that of Connect's
// function is: a command of an object that is stopped, say, is a conflict.
func (b *ExecBuilder[T]) Check(check func(ctx context.Context, r *ExecRequest[T]) error) *ExecBuilder[T] {
	b.commands.check = check
	return b
}

// Idle ends sessions in which nothing is sent for so long. The default, and zero, is four hours;
// negative is no limit.
func (b *ExecBuilder[T]) Idle(d time.Duration) *ExecBuilder[T] {
	b.commands.limits.idle = d
	return b
}

// Total ends sessions that take so long. The default is no limit, and so is what is not positive.
func (b *ExecBuilder[T]) Total(d time.Duration) *ExecBuilder[T] {
	b.commands.limits.total = d
	return b
}
