package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

const operationKind = "Operation"

// operationOf returns the object of a started operation.
func (p *plugin) operationOf(started *unstructured.Unstructured) (object, error) {
	all, err := p.server.resources()
	if err != nil {
		return object{}, err
	}
	gv, err := schema.ParseGroupVersion(started.GetAPIVersion())
	if err != nil {
		return object{}, fmt.Errorf("the operation in the answer has an invalid apiVersion: %w", err)
	}
	for _, r := range all {
		if r.kind == operationKind && r.Group == gv.Group {
			return object{r, started.GetNamespace(), started.GetName()}, nil
		}
	}
	return object{}, fmt.Errorf("the operation %s was started, but %s has no resource with which to follow it", started.GetName(), gv)
}

// phase returns the phase of an operation.
func phase(operation *unstructured.Unstructured) string {
	phase, _, _ := unstructured.NestedString(operation.Object, "status", "phase")
	return phase
}

// isOver reports whether an operation has ended, successfully or not.
func isOver(operation *unstructured.Unstructured) bool {
	switch phase(operation) {
	case "Succeeded", "Failed", "Cancelled":
		return true
	}
	return false
}

// isCancelled reports whether cancellation of an operation has been requested. The command cancel is done then.
func isCancelled(operation *unstructured.Unstructured) bool {
	cancel, _, _ := unstructured.NestedBool(operation.Object, "spec", "cancel")
	return cancel
}

// follow shows the progress of an operation until it has ended, and returns its final state. now is its current
// state. A timeout of 0 means none.
func (p *plugin) follow(
	ctx context.Context,
	o object,
	now *unstructured.Unstructured,
	timeout time.Duration,
) (*unstructured.Unstructured, error) {
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	shown := newProgress(p.ErrOut, o)
	defer shown.end()
	ended, err := untilOver(waiting, client.Resource(o.GroupVersionResource).Namespace(o.namespace), o, now, shown.show)
	if err != nil && waiting.Err() != nil {
		shown.end()
		fmt.Fprintf(p.ErrOut, "%s is still running. To follow or cancel it:\n  %s wait "+
			"%s/%s%s\n", o, p.called(), o.full(), o.name, p.inNamespace(o))
		if o.named("cancel") != nil {
			fmt.Fprintf(p.ErrOut, "  %s cancel %s/%s%s\n", p.called(), o.full(), o.name, p.inNamespace(o))
		} else {
			fmt.Fprintf(p.ErrOut, "  kubectl patch %s/%s%s --type=merge -p '{\"spec\":{\"cancel\":true}}'\n", o.full(), o.name, p.inNamespace(o))
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s has not ended after %s", o, timeout)
	}
	return ended, err
}

func (p *plugin) inNamespace(o object) string {
	if o.namespace == "" {
		return ""
	}
	return " -n " + o.namespace
}

// untilOver returns the operation when it has ended. now is its current state. It continues when a watch ends, or
// while the server is temporarily unavailable.
func untilOver(
	ctx context.Context,
	client dynamic.ResourceInterface,
	o object,
	now *unstructured.Unstructured,
	show func(*unstructured.Unstructured),
) (*unstructured.Unstructured, error) {
	for {
		show(now)
		if isOver(now) {
			return now, nil
		}
		var err error
		if now, err = watched(ctx, client, o, now, show); err != nil || isOver(now) {
			return now, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
		read, err := client.Get(ctx, o.name, metav1.GetOptions{})
		switch {
		case err == nil && read.GetUID() != now.GetUID():
			return nil, fmt.Errorf("%s was deleted, and another operation has the same name", o)
		case err == nil:
			now = read
		case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !isTemporary(err):
			return nil, err
		}
	}
}

// isTemporary reports whether a request may succeed later, although it failed with err.
func isTemporary(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}

// pause waits between two attempts.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

// watched follows a watch of the operation until the operation has ended or the watch ends, and returns its last
// state.
func watched(
	ctx context.Context,
	client dynamic.ResourceInterface,
	o object,
	now *unstructured.Unstructured,
	show func(*unstructured.Unstructured),
) (*unstructured.Unstructured, error) {
	w, err := client.Watch(ctx, metav1.ListOptions{
		FieldSelector:   "metadata.name=" + o.name,
		ResourceVersion: now.GetResourceVersion(),
	})
	if err != nil {
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return nil, err
		}
		return now, ctx.Err()
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok || event.Type == watch.Error {
				return now, nil
			}
			seen, is := event.Object.(*unstructured.Unstructured)
			if !is || event.Type == watch.Bookmark {
				continue
			}
			if event.Type == watch.Deleted {
				if isOver(seen) {
					return seen, nil
				}
				return nil, fmt.Errorf("%s was deleted before it ended", o)
			}
			now = seen
			show(now)
			if isOver(now) {
				return now, nil
			}
		}
	}
}

// outcome returns nil if the operation succeeded, and otherwise the reason for its end.
func outcome(out io.Writer, o object, ended *unstructured.Unstructured) error {
	message, _, _ := unstructured.NestedString(ended.Object, "status", "error", "message")
	if message == "" {
		message, _, _ = unstructured.NestedString(ended.Object, "status", "message")
	}
	if message != "" {
		message = ": " + printable(message)
	}
	switch phase(ended) {
	case "Succeeded":
		return nil
	case "Cancelled":
		fmt.Fprintf(out, "error: %s was cancelled%s\n", o, message)
	default:
		fmt.Fprintf(out, "error: %s failed%s\n", o, message)
	}
	if log, _, _ := unstructured.NestedString(ended.Object, "status", "log"); log != "" {
		lines := strings.Split(strings.TrimRight(printable(log), "\n"), "\n")
		fmt.Fprintf(out, "The end of its log:\n  %s\n", strings.Join(lines[max(0, len(lines)-10):], "\n  "))
	}
	return errReported
}

// resultOf returns the result of an operation's action, as JSON.
func resultOf(ended *unstructured.Unstructured) ([]byte, bool) {
	result, ok, _ := unstructured.NestedFieldNoCopy(ended.Object, "status", "result")
	if !ok || result == nil {
		return nil, false
	}
	text, err := json.Marshal(result)
	return text, err == nil
}

// progress shows the progress of an operation: on a terminal as a bar on one line, otherwise as a line for each
// change.
type progress struct {
	out      io.Writer
	of       object
	terminal bool
	width    int
	last     string
	drawn    bool
}

func newProgress(out io.Writer, of object) *progress {
	p := &progress{out: out, of: of}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.terminal, p.width = true, 80
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

func (p *progress) show(operation *unstructured.Unstructured) {
	line := p.line(operation)
	if line == p.last {
		return
	}
	p.last = line
	if !p.terminal {
		fmt.Fprintln(p.out, line)
		return
	}
	letters := []rune(line)
	if len(letters) >= p.width {
		letters = append(letters[:max(0, p.width-2)], '…')
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", string(letters))
	p.drawn = true
}

// end leaves the bar, and moves the cursor below it.
func (p *progress) end() {
	if p.drawn {
		fmt.Fprintln(p.out)
		p.drawn = false
	}
}

// barWidth is the width of the bar between its brackets.
const barWidth = 24

func (p *progress) line(operation *unstructured.Unstructured) string {
	words := []string{p.of.String(), phase(operation)}
	if words[1] == "" {
		words[1] = "Pending"
	}
	status, _, _ := unstructured.NestedMap(operation.Object, "status", "progress")
	percent, known := number(status["percent"])
	done, _ := number(status["done"])
	total, hasTotal := number(status["total"])
	switch {
	case !known && hasTotal && total > 0:
		percent, known = 100*done/total, true
	case total <= 0 && percent == 0:
		known = false // without a total, the percentage is always 0
	}
	if known {
		percent = min(max(percent, 0), 100)
		if p.terminal {
			full := int(percent * barWidth / 100)
			words = append(words, "["+strings.Repeat("#", full)+strings.Repeat(".", barWidth-full)+"]")
		}
		words = append(words, fmt.Sprintf("%d%%", int(percent)))
	}
	amount := ""
	switch {
	case total > 0:
		amount = fmt.Sprintf("%.0f/%.0f", done, total)
	case done > 0:
		amount = fmt.Sprintf("%.0f", done)
	}
	if unit, _ := status["unit"].(string); unit != "" && amount != "" {
		amount += " " + unit
	}
	if amount != "" {
		words = append(words, amount)
	}
	if message, _, _ := unstructured.NestedString(operation.Object, "status", "message"); message != "" {
		words = append(words, strings.Join(strings.Fields(message), " "))
	}
	return printable(strings.Join(words, " "))
}

// printable replaces the characters in a text that a terminal would interpret.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, text)
}

func number(value any) (float64, bool) {
	switch n := value.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}
