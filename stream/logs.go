package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/server/streams"
)

// LogOptions are the options of a request for a log. Their names in the query are those of a pod's log.
type LogOptions struct {
	metav1.TypeMeta `json:",inline"`

	// Container selects one of the object's logs. With LogsBuilder.Containers it is always one of the names listed
	// there; without, it is the client's parameter as it came.
	Container string `json:"container,omitempty"`
	// Follow continues with lines that are logged later.
	Follow bool `json:"follow,omitempty"`
	// Previous selects the log of the run before the current one.
	Previous bool `json:"previous,omitempty"`
	// SinceSeconds is SinceTime relative to now. Functions see SinceTime instead.
	SinceSeconds *int64 `json:"sinceSeconds,omitempty"`
	// SinceTime selects lines from this time on; nil selects all.
	SinceTime *metav1.Time `json:"sinceTime,omitempty"`
	// Timestamps begins each line with its time.
	Timestamps bool `json:"timestamps,omitempty"`
	// TailLines selects the last so many of the existing lines; nil selects all.
	TailLines *int64 `json:"tailLines,omitempty"`
	// LimitBytes bounds the answer in bytes, even in the middle of a line; nil sets no limit.
	LimitBytes *int64 `json:"limitBytes,omitempty"`
}

// DeepCopyObject returns a copy.
func (o *LogOptions) DeepCopyObject() runtime.Object {
	c := *o
	c.SinceSeconds, c.TailLines, c.LimitBytes = copied(o.SinceSeconds), copied(o.TailLines), copied(o.LimitBytes)
	c.SinceTime = o.SinceTime.DeepCopy()
	return &c
}

func copied(n *int64) *int64 {
	if n == nil {
		return nil
	}
	c := *n
	return &c
}

// SwaggerDoc describes the options for OpenAPI.
func (LogOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"container":    "Name of the log to read. Defaults to the first log of the object.",
		"follow":       "Follow the log. Defaults to false.",
		"previous":     "Read the log of the previous run. Defaults to false.",
		"sinceSeconds": "Number of seconds; only newer lines are returned. At most one of sinceSeconds and sinceTime may be given.",
		"sinceTime":    "Time in RFC 3339; only newer lines are returned. At most one of sinceSeconds and sinceTime may be given.",
		"timestamps":   "Begin each line with its time, in RFC 3339. Defaults to false.",
		"tailLines":    "Number of lines from the end of the log. Defaults to all lines.",
		"limitBytes":   "Maximum number of bytes to return. Defaults to no limit.",
	}
}

// LogRequest is a request for the log of a T.
type LogRequest[T any] struct {
	Request[T]
	// Options are the client's options. A function may handle an option itself, for example by reading from the right
	// place, and then clears it here; the builder handles the rest. See Logs.
	Options LogOptions
}

// LogsBuilder describes a subresource that serves a log of a T.
type LogsBuilder[T any] struct {
	annex.SubresourceOf[T]
	log *logOf[T]
}

type logOf[T any] struct {
	name        string
	open        func(ctx context.Context, r *LogRequest[T]) (io.ReadCloser, error)
	containers  containers[T]
	timestamped bool
}

// Logs describes a subresource that serves a log, as a pod's log does: a GET of NAME/name answers with lines of text.
// T is the kind's hub. open returns the reader for one request. It is called before any part of the answer is sent,
// so that its error reaches the client as a Status: the API status that the error is or wraps, else an internal
// error. ctx is the request's context. The reader has to handle only these options:
//
//   - With Follow, it continues with later lines. If its Read waits for them, Close is called during Read when the
//     client goes or the server stops, and Read has to return. If the reader is a Waiter, Read does not wait.
//   - Previous selects the log, and so does Container if Containers is not set. A function that supports them clears
//     them; a request with an option that is not cleared is answered with 400.
//
// The builder handles the rest: TailLines, by seeking if the reader can seek, else in some 4 MiB of memory, beyond
// which the client gets fewer lines and a warning; LimitBytes; and, if the log is Timestamped, SinceTime and
// Timestamps. If the log is not Timestamped, SinceTime and Timestamps are answered with 400. TailLines with Follow
// needs a reader that seeks or is a Waiter, because the end of the existing lines is unknown with any other. A
// function that handles one of these options itself clears it. Options that kube-apiserver would refuse are answered
// with 422; unknown parameters are ignored, with a warning.
//
// Callers need the verb get on the resource with the subresource. All requests, following or not, are long-running,
// as requests for a pod's log are: they have no deadline, and their context ends with the client or when the server
// stops. Lines are sent in pieces of 32 KiB, and at once when no more can be read without waiting. A slow client
// slows the reader down, and costs no more memory. An answer that cannot be completed is cut off, so that the client
// does not take it for a whole one.
func Logs[T any, PT object[T]](name string, open func(ctx context.Context, r *LogRequest[T]) (io.ReadCloser, error)) *LogsBuilder[T] {
	log := &logOf[T]{name: name, open: open}
	connect := log.connect
	if open == nil {
		connect = nil // annex.New reports the mistake
	}
	return &LogsBuilder[T]{
		annex.Connect[T, LogOptions, PT](name, connect),
		log,
	}
}

// LogsAt is Logs served by a remote agent, which answers a GET with the log, as a kubelet does. locate returns the
// agent; an error of locate is the answer to the request. A URL without a query gets the options as its query, under
// the names of a pod's options. The agent handles all options; the server enforces LimitBytes as well. An error
// answer of the agent is passed on; an agent that cannot be reached is answered with 503.
func LogsAt[T any, PT object[T]](name string, locate func(ctx context.Context, r *LogRequest[T]) (*Backend, error)) *LogsBuilder[T] {
	if locate == nil {
		return Logs[T, PT](name, nil)
	}
	return Logs[T, PT](name, func(ctx context.Context, r *LogRequest[T]) (io.ReadCloser, error) {
		asked := r.Options
		backend, err := locate(ctx, r)
		if err != nil {
			return nil, err
		}
		agent, err := backend.agent(asked.query())
		if err != nil {
			return nil, err
		}
		log, err := streams.Log(ctx, agent, r.Resource.GroupResource(), r.Name)
		if err != nil {
			return nil, err
		}
		r.Options = LogOptions{LimitBytes: asked.LimitBytes}
		return log, nil
	})
}

// query returns the query for an agent.
func (o *LogOptions) query() url.Values {
	query := url.Values{}
	for name, said := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if said {
			query.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if n != nil {
			query.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.Container != "" {
		query.Set("container", o.Container)
	}
	if o.SinceTime != nil {
		query.Set("sinceTime", o.SinceTime.UTC().Format(time.RFC3339Nano))
	}
	return query
}

// Containers sets the function that lists the logs of an object. The first is the default. A request for an unknown
// log is refused with 400, and so is every request if the list is empty.
func (b *LogsBuilder[T]) Containers(containers func(obj *T) []string) *LogsBuilder[T] {
	b.log.containers = containers
	return b
}

// Timestamped declares that each line begins with its time in RFC 3339, with or without fractions of a second, and a
// space. The times are sent only to clients that ask for them. A line without a time has the time of the line before
// it.
func (b *LogsBuilder[T]) Timestamped() *LogsBuilder[T] {
	b.log.timestamped = true
	return b
}

// Waiter is implemented by readers that follow a log without a goroutine blocked in Read. Read returns io.EOF when
// there is nothing more yet, and is called again after Wait has returned nil. Wait returns io.EOF when nothing more
// will come, and the context's error when the context ends. Read, Wait and Close are not called concurrently.
type Waiter interface {
	io.Reader
	Wait(ctx context.Context) error
}

func (l *logOf[T]) connect(ctx context.Context, c *annex.ConnectRequest[T, LogOptions]) (http.Handler, error) {
	options := *c.Options
	if errs := validateLog(&options); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "LogOptions"}, c.Name, errs)
	}
	request := &LogRequest[T]{Request: requestOf(c)}
	container, err := l.containers.choose(&request.Request, options.Container)
	if err != nil {
		return nil, err
	}
	options.Container = container
	if options.SinceSeconds != nil {
		options.SinceTime, options.SinceSeconds = sinceSeconds(*options.SinceSeconds), nil
	}
	request.Options = options
	from, err := l.open(ctx, request)
	if err != nil {
		return nil, err
	}
	if from == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("%s of %s %q returned no reader", l.name, c.Resource.Resource, c.Name))
	}
	if err := l.checkLeft(c, &request.Options, from); err != nil {
		_ = from.Close() // the first error is the one to report
		return nil, err
	}
	return &logAnswer{
		from:        from,
		options:     request.Options,
		timestamped: l.timestamped,
		follow:      options.Follow,
		respond:     c.Responder.Error,
	}, nil
}

// sinceSeconds returns the time n seconds ago.
func sinceSeconds(n int64) *metav1.Time {
	const most = int64(math.MaxInt64) / int64(time.Second) // of a time.Duration
	t := metav1.NewTime(time.Now().Add(-time.Duration(min(n, most)) * time.Second))
	return &t
}

// validateLog refuses the options that kube-apiserver refuses for a pod's log, with the same messages.
func validateLog(o *LogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	return errs
}

// checkLeft refuses options that neither the function nor the builder can handle.
func (l *logOf[T]) checkLeft(c *annex.ConnectRequest[T, LogOptions], o *LogOptions, from io.Reader) error {
	object := c.Resource.Resource + " " + c.Name
	_, waits := from.(Waiter)
	switch {
	case l.containers == nil && o.Container != "":
		return apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for %s", o.Container, object))
	case o.Previous:
		return apierrors.NewBadRequest(fmt.Sprintf("previous: %s has no log of a previous run", object))
	case o.SinceTime != nil && !l.timestamped:
		return apierrors.NewBadRequest(fmt.Sprintf("sinceTime, sinceSeconds: lines of %s have no timestamps", object))
	case o.Timestamps && !l.timestamped:
		return apierrors.NewBadRequest(fmt.Sprintf("timestamps: lines of %s have no timestamps", object))
	case o.TailLines != nil && o.Follow && !waits && !canSeek(from):
		return apierrors.NewBadRequest(
			fmt.Sprintf("tailLines: the log of %s does not support follow together with tailLines: remove one of them", object),
		)
	}
	return nil
}

// canSeek reports whether the reader can seek. The type does not decide: a pipe is an os.File, too.
func canSeek(from io.Reader) bool {
	seeker, ok := from.(io.Seeker)
	if !ok {
		return false
	}
	_, err := seeker.Seek(0, io.SeekCurrent)
	return err == nil
}

// logAnswer writes a log to a client.
type logAnswer struct {
	from        io.ReadCloser
	options     LogOptions
	timestamped bool
	follow      bool
	respond     func(err error)
}

// logBuffer is the number of bytes read at once.
const logBuffer = 32 << 10

func (a *logAnswer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	if httpstream.IsUpgradeRequest(r) {
		_ = a.from.Close() // nothing was written
		a.respond(apierrors.NewBadRequest("logs do not support an upgrade of the connection"))
		return
	}
	closing := sync.OnceValue(a.from.Close)
	defer func() { _ = closing() }() // nothing was written
	if _, waits := a.from.(Waiter); !waits {
		defer context.AfterFunc(ctx, func() { _ = closing() })()
	}
	controller := http.NewResponseController(w)
	if a.follow {
		// A client that does not read must not block a server that stops.
		bounded := make(chan struct{})
		leave := context.AfterFunc(ctx, func() {
			defer close(bounded)
			_ = controller.SetWriteDeadline(time.Now().Add(time.Second))
		})
		defer func() {
			if !leave() {
				<-bounded // after return, the connection belongs to another request
			}
		}()
	}
	warnOfUnknown(r)

	lines, err := a.lines(ctx)
	if err != nil {
		a.respond(unread(err))
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	begun := false
	begin := func() {
		if !begun {
			begun = true
			w.WriteHeader(http.StatusOK)
		}
	}
	flush := func() {
		begin()
		_ = controller.Flush() // the next write reports an error if the client is gone
	}
	if a.follow {
		lines.idle = flush
	}
	buffer := make([]byte, logBuffer)
	for {
		n, err := lines.Read(buffer)
		if n > 0 {
			begin()
			if _, err := w.Write(buffer[:n]); err != nil {
				return // the client is gone
			}
			if a.follow && lines.waiter == nil {
				flush()
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), a.follow && errors.Is(ctx.Err(), context.Canceled):
			return
		case !begun:
			a.respond(unread(err))
			return
		default:
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to read a log to its end", "path", r.URL.Path)
			}
			panic(http.ErrAbortHandler)
		}
	}
}

// unread returns the answer to a request whose log cannot be read: the API status that the reader's error is or
// wraps, else an internal error.
func unread(err error) error {
	err = fmt.Errorf("read the log: %w", err)
	if status, ok := apierr.Status(err); ok {
		return status
	}
	return apierrors.NewInternalError(err)
}

// lines returns a reader of the lines that the options select.
func (a *logAnswer) lines(ctx context.Context) (*waiting, error) {
	var from io.Reader = a.from
	_, waits := from.(Waiter)
	waits = waits && a.follow
	if n := a.options.TailLines; n != nil {
		tail, fewer, err := lastLines(from, *n)
		if err != nil {
			return nil, err
		}
		if fewer {
			warning.AddWarning(ctx, "", fmt.Sprintf("tailLines: only lines of the last %d MiB are shown", maxTail>>20))
		}
		from = tail
	}
	if a.timestamped && (!a.options.Timestamps || a.options.SinceTime != nil) {
		s := &stampedLines{from: from, strip: !a.options.Timestamps, followed: waits}
		if a.options.SinceTime != nil {
			s.since = a.options.SinceTime.Time
		}
		from = s
	}
	var waiter Waiter
	if waits {
		waiter = from.(Waiter) // every wrapper of a Waiter is a Waiter
	}
	limit := int64(-1)
	if a.options.LimitBytes != nil {
		limit = *a.options.LimitBytes
	}
	return &waiting{ctx: ctx, from: from, waiter: waiter, idle: func() {}, limit: limit}, nil
}

// waiting reads up to a limit, and waits if the reader is a Waiter.
type waiting struct {
	ctx    context.Context
	from   io.Reader
	waiter Waiter // nil if Read of from waits by itself
	idle   func() // called before it waits
	limit  int64  // negative: no limit
}

func (w *waiting) Read(p []byte) (int, error) {
	if w.limit == 0 {
		return 0, io.EOF
	}
	if w.limit > 0 {
		p = p[:min(int64(len(p)), w.limit)]
	}
	for {
		if w.waiter == nil {
			w.idle()
			w.idle = func() {} // only once: the caller knows that something has been read since
		}
		n, err := w.from.Read(p)
		if w.limit > 0 {
			w.limit -= int64(n)
		}
		if w.waiter == nil || n > 0 || !errors.Is(err, io.EOF) {
			if n > 0 && errors.Is(err, io.EOF) {
				err = nil // the next Read returns it again
			}
			return n, err
		}
		w.idle()
		if err := w.waiter.Wait(w.ctx); err != nil {
			return 0, err
		}
	}
}

// commonParameters are parameters that clients send with any request.
var commonParameters = []string{"pretty", "timeout", "timeoutSeconds", "dryRun"}

// warnOfUnknown warns the client of unknown parameters. They are ignored, as by kube-apiserver, but a misspelled
// tailLines should not go unnoticed.
func warnOfUnknown(r *http.Request) {
	known := LogOptions{}.SwaggerDoc()
	for _, name := range slices.Sorted(maps.Keys(r.URL.Query())) {
		if _, ok := known[name]; !ok && !slices.Contains(commonParameters, name) {
			warning.AddWarning(
				r.Context(),
				"",
				fmt.Sprintf("ignored unknown option %q; options are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", ")),
			)
		}
	}
}
