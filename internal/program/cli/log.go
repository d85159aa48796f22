package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/server/loopback"
)

// logFormat is the log's format, the value of --log-format.
type logFormat string

const (
	logText logFormat = "text"
	logJSON logFormat = "json"
)

func (f *logFormat) String() string { return string(*f) }
func (f *logFormat) Type() string   { return "string" }

// Set implements pflag.Value.
func (f *logFormat) Set(text string) error {
	format := logFormat(text)
	if format != logText && format != logJSON {
		return fmt.Errorf("choose %s or %s", logText, logJSON)
	}
	*f = format
	return nil
}

// logFlags are the flags of the log's verbosity and format.
type logFlags struct {
	format    logFormat
	verbosity int
}

func (l *logFlags) declare(flags *pflag.FlagSet) {
	l.format = logText
	flags.Var(&l.format, "log-format", "format of the log on standard error: text or json")
	flags.IntVarP(&l.verbosity, "verbosity", "v", 0, "log level; 0 logs warnings and errors only")
}

// logTo sends the libraries' log, of which a process has only one, to w. The context ends when the program stops.
func logTo(ctx context.Context, w io.Writer, format logFormat, verbosity int) {
	options := &slog.HandlerOptions{Level: klogLevel{}, ReplaceAttr: logAttr}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if format == logJSON {
		handler = slog.NewJSONHandler(w, options)
	}
	// klog checks its own verbosity flag first.
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	_ = flags.Set("v", strconv.Itoa(verbosity)) // the value is a number
	// klog's formatting functions put the severity into the text line and do not use the logger. As structured
	// messages, their warnings would have level INFO.
	handler = calmed{handler, ctx.Err}
	klog.SetLoggerWithOptions(logr.FromSlogHandler(handler), klog.ContextualLogger(true), klog.WriteKlogBuffer(func(line []byte) {
		logLine(slog.New(handler), line)
	}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		klog.Background().Error(err, "Spans are lost")
	}))
}

// calmed logs at level INFO errors of libraries that have another cause than a failure: a client has disconnected, or
// the program stops. Both happen at every stop of a server with controllers that write and watch.
type calmed struct {
	slog.Handler
	stopped func() error // returns nil until the program stops
}

// Handle implements slog.Handler.
func (c calmed) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError || !c.expected(r) {
		return c.Handler.Handle(ctx, r)
	}
	r.Level = slog.LevelInfo
	if !c.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c calmed) WithAttrs(attrs []slog.Attr) slog.Handler {
	return calmed{c.Handler.WithAttrs(attrs), c.stopped}
}

// WithGroup implements slog.Handler.
func (c calmed) WithGroup(name string) slog.Handler {
	return calmed{c.Handler.WithGroup(name), c.stopped}
}

// expected reports whether a disconnected client or the stop of the program explains an error.
func (c calmed) expected(r slog.Record) bool {
	stopping := c.stopped() != nil
	expected := stopping && endedByStop(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text := a.Value.String()
			expected = expected || clientGone(text) || stopping && endedByStop(text)
		}
		return !expected
	})
	return expected
}

// clientGone reports whether an error is about a request or watch that continued after its client disconnected, and
// that ended without a panic.
func clientGone(text string) bool {
	return text == io.ErrClosedPipe.Error() || // from a client in this process
		strings.HasPrefix(text, "FinishRequest: post-timeout activity") && strings.Contains(text, "panicked: false") &&
			(strings.Contains(text, context.Canceled.Error()) || strings.Contains(text, " err: <nil>,"))
}

// endedByStop reports whether an error of a program that stops is about a controller or plugin that ended before its
// informers had read their objects, or about a last request to the program's own server.
func endedByStop(text string) bool {
	return strings.HasPrefix(text, "Unable to sync caches") || strings.HasPrefix(text, "policy source context unexpectedly closed") ||
		strings.Contains(text, "the server is stopping") || strings.Contains(text, loopback.Host+"/")
}

// klogLevel is klog's verbosity as a slog level. It can change while a server runs.
type klogLevel struct{}

// maxVerbosity is upstream's highest verbosity; no message has a higher one.
const maxVerbosity = 10

func (klogLevel) Level() slog.Level {
	if !klog.V(1).Enabled() {
		return slog.LevelWarn
	}
	verbosity := 1
	for verbosity < maxVerbosity && klog.V(klog.Level(verbosity+1)).Enabled() {
		verbosity++
	}
	return slog.Level(-verbosity)
}

// logLine logs a line in klog's format: W1231 23:59:59.999999 1 file.go:1] message.
func logLine(logger *slog.Logger, line []byte) {
	level := slog.LevelInfo
	if len(line) > 0 {
		switch line[0] {
		case 'W':
			level = slog.LevelWarn
		case 'E', 'F':
			level = slog.LevelError
		}
	}
	if _, message, ok := bytes.Cut(line, []byte("] ")); ok {
		line = message
	}
	message := string(bytes.TrimRight(line, "\n"))
	if message == withoutBeta {
		level = slog.LevelInfo
	}
	logger.Log(context.Background(), level, message)
}

// withoutBeta is a warning that upstream logs at each start of a server with custom resources: upstream's scheme
// still has the v1beta1 version of CustomResourceDefinitions, which no server serves any more.
const withoutBeta = "Skipping API apiextensions.k8s.io/v1beta1 because it has no resources."

// logAttr rewrites an attribute for output: field names become flag names, and levels below INFO become DEBUG with
// the verbosity that enables them.
func logAttr(_ []string, a slog.Attr) slog.Attr {
	switch value := a.Value.Any().(type) {
	case slog.Level:
		if value < slog.LevelInfo {
			return slog.Attr{Value: slog.GroupValue(slog.String(a.Key, "DEBUG"), slog.Int("v", -int(value)))}
		}
	case string:
		return slog.String(a.Key, flagNames(value))
	case error:
		return slog.String(a.Key, flagNames(value.Error()))
	}
	return a
}
