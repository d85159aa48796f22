package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
)

func TestLog_fieldNames_becomeFlags(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: logAttr}))
	logger.Warn("an automatic reload requires "+
		"Options.EncryptionConfigFile", "err", usage(errText("Options.ServeDespiteUndecodable is set")), "count", 3)
	for _, want := range []string{"an automatic reload requires " +
		"--encryption-provider-config", "--serve-despite-undecodable is set", "count=3"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is logged, without %q", out.String(), want)
		}
	}
}

type errText string

func (e errText) Error() string { return string(e) }

func TestLog_levels(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{
		slog.LevelError: " level=ERROR msg=",
		slog.LevelWarn:  " level=WARN msg=",
		slog.LevelInfo:  " level=INFO msg=",
		-1:              " level=DEBUG v=1 msg=",
		-6:              " level=DEBUG v=6 msg=",
	} {
		var out strings.Builder
		slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.Level(-10), ReplaceAttr: logAttr})).
			Log(context.Background(), level, "x")
		if !strings.Contains(out.String(), want) {
			t.Errorf("%v is logged as %q, want %q", level, out.String(), want)
		}
	}
}

// It sets the log of the process, so it is not parallel.
func TestLog_json(t *testing.T) {
	t.Cleanup(klog.ClearLogger)
	var out bytes.Buffer
	logTo(t.Context(), &out, logJSON, 2)
	klog.FromContext(t.Context()).V(2).Info("there is no Options.StorageOf", "count", 1)
	klog.Error("an error\nof two lines")
	var lines []map[string]any
	for line := range strings.Lines(out.String()) {
		var parsed map[string]any
		if err := json.Unmarshal([]byte(line), &parsed); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		delete(parsed, "time")
		lines = append(lines, parsed)
	}
	want := []map[string]any{
		{"level": "DEBUG", "v": 2.0, "msg": "there is no --storage-of", "count": 1.0},
		{"level": "ERROR", "msg": "an error\nof two lines"},
	}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got %v", lines)
	}
}

// It sets the log of the process, so it is not parallel.
func TestLog_libraryWarnings(t *testing.T) {
	t.Cleanup(klog.ClearLogger)
	var out bytes.Buffer
	logTo(t.Context(), &out, logText, 0)
	klog.Info("information")
	klog.Warningf("a %s] warning", "[formatted")
	klog.Error("an error")
	klog.ErrorS(nil, "a structured error", "count", 1)
	klog.InfoS("structured information")
	if logged := out.String(); !strings.Contains(logged, `level=WARN msg="a [formatted] warning"`) ||
		!strings.Contains(logged, `level=ERROR msg="an error"`) ||
		!strings.Contains(logged, `level=ERROR msg="a structured error" count=1`) ||
		strings.Count(logged, "\n") != 3 {
		t.Errorf("logged:\n%s", logged)
	}
	out.Reset()
	logTo(t.Context(), &out, logText, 2)
	klog.V(2).Info("as asked")
	klog.V(3).Info("too much")
	klog.FromContext(t.Context()).V(2).Info("with a logger")
	if _, err := logs.GlogSetter("1"); err != nil { // as a PUT of /debug/flags/v does
		t.Fatal(err)
	}
	klog.FromContext(t.Context()).V(2).Info("too much by now")
	if logged := out.String(); !strings.Contains(logged, `level=INFO msg="as asked"`) ||
		!strings.Contains(logged, `level=DEBUG v=2 msg="with a logger"`) ||
		strings.Count(logged, "\n") != 2 {
		t.Errorf("logged:\n%s", logged)
	}
}

func TestLog_clientGone_isInformation(t *testing.T) {
	t.Parallel()
	const gone = "FinishRequest: post-timeout activity - time-elapsed: 4us, panicked: false, err: Timeout: nothing was written: context " +
		"canceled, panic-reason: <nil>"
	for text, want := range map[string]string{
		gone: "INFO",
		strings.Replace(gone, "panicked: false", "panicked: true", 1):                       "ERROR",
		strings.Replace(gone, "context canceled", "context deadline exceeded", 1):           "ERROR",
		strings.Replace(gone, "Timeout: nothing was written: context canceled", "<nil>", 1): "INFO",
		"io: read/write on closed pipe":                                                     "INFO",
		"something else":                                                                    "ERROR",
	} {
		var out strings.Builder
		slog.New(calmed{slog.NewTextHandler(&out, nil), t.Context().Err}).
			With("logger", "UnhandledError").
			Error("Unhandled Error", "err", text)
		if !strings.Contains(out.String(), "level="+want) {
			t.Errorf("%s, want %s", out.String(), want)
		}
	}
	var out strings.Builder
	slog.New(calmed{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}), t.Context().Err}).
		Error("Unhandled Error", "err", gone)
	if out.Len() > 0 {
		t.Errorf("logged although information is not: %s", out.String())
	}
}

func TestLog_endByStop_isInformation(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	var out strings.Builder
	logger := slog.New(calmed{slog.NewTextHandler(&out, nil), ctx.Err}).With("logger", "UnhandledError")
	logAll := func() string {
		out.Reset()
		logger.Error("Unable to sync caches")
		logger.Error("Unhandled Error", "err", "Unable to sync caches for autoregister controller")
		logger.Error("Unhandled Error", "err", "policy source context unexpectedly closed: the informer has stopped")
		logger.Error("Unhandled Error", "err", `v1.apps failed with : apiservices "v1.apps" is forbidden: the server is stopping`)
		logger.Error("Unhandled Error", "err", `v1.apps failed with : Post "http://loopback/apis/apps/v1": EOF`)
		return out.String()
	}
	if logged := logAll(); strings.Count(logged, "level=ERROR") != 5 {
		t.Errorf("of a program that runs: %s", logged)
	}
	stop()
	if logged := logAll(); strings.Count(logged, "level=INFO") != 5 {
		t.Errorf("of a program that stops: %s", logged)
	}
	logger.Error("Unhandled Error", "err", "something else")
	if !strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("another error of a program that stops: %s", out.String())
	}
}
