package mvcc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store/memory"
)

// output is the output of a watch in tests.
type output struct {
	flushed chan []string
	stuck   chan struct{} // blocks Flush until it is closed; nil for no blocking
	// stuckRelease blocks Release in the same way; releasing is notified when Release blocks.
	stuckRelease, releasing chan struct{}

	// encoding is that of objects that are accepted in it; nil for none.
	encoding *verbatim.Encoding

	mu    sync.Mutex
	sent  []string
	holds int
}

var _ push.Output = (*output)(nil)

func newOutput() *output {
	return &output{flushed: make(chan []string, 100)}
}

func (o *output) Send(event watch.Event, shared bool) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if object, ok := event.Object.(runtime.CacheableObject); ok {
		event.Object = object.GetObject()
	}
	text := describe(event)
	if shared {
		text += " shared"
	}
	o.sent = append(o.sent, text)
	return len(o.sent) == 3, nil
}

func (o *output) Encoding() *verbatim.Encoding { return o.encoding }

func (o *output) SendStored(object verbatim.Fragment) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, "stored "+string(object.Whole()))
	return len(o.sent) == 3, nil
}

func (o *output) Flush() error {
	o.mu.Lock()
	sent := o.sent
	o.sent = nil
	o.mu.Unlock()
	o.flushed <- sent
	if o.stuck != nil {
		<-o.stuck
	}
	return nil
}

func (o *output) Hold() { o.add(1) }

func (o *output) Release() {
	o.add(-1)
	if o.stuckRelease != nil {
		close(o.releasing)
		<-o.stuckRelease
	}
}

func (o *output) add(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds += n
}

func (o *output) held() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.holds
}

func (o *output) Deeply(f func()) { f() }

// intoOutput is implemented by storages that can write a watch to an output.
type intoOutput interface {
	WatchInto(
		ctx context.Context,
		key string,
		opts storage.ListOptions,
		wrap func(runtime.Object) runtime.Object,
		out push.Output,
	) (watch.Interface, error)
}

// runInto writes a watch to an output and returns a channel that is closed when the watch has ended.
func runInto(ctx context.Context, t *testing.T, pods storage.Interface, opts storage.ListOptions, out *output) <-chan struct{} {
	t.Helper()
	opts.Recursive = true
	w, err := pods.(intoOutput).WatchInto(ctx, "/pods/", opts, func(o runtime.Object) runtime.Object { return o }, out)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range w.ResultChan() {
			t.Errorf("there is something to receive: %v", event)
		}
	}()
	return ended
}

func (o *output) want(t *testing.T, want ...string) {
	t.Helper()
	select {
	case got := <-o.flushed:
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("flushed %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("nothing was flushed, want %q", want)
	}
}

func await(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the watch has not ended")
	}
}

func TestWatchInto_dueEvents_areOneFlush(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	for _, name := range []string{"a", "b", "c"} {
		create(t, pods, name)
	}
	out := newOutput()
	ctx, cancel := context.WithCancel(t.Context())
	ended := runInto(ctx, t, pods, storage.ListOptions{SendInitialEvents: ptr.To(true), Predicate: withBookmarks(storage.Everything)}, out)
	out.want(t, "ADDED a@2", "ADDED b@3", "ADDED c@4")
	out.want(t, "BOOKMARK @4 end of initial events")
	create(t, pods, "d")
	out.want(t, "ADDED d@5 shared")
	clock.Step(time.Minute)
	out.want(t, "BOOKMARK @5")

	// Events that arrive while a client does not read are flushed together.
	late := newOutput()
	late.stuck = make(chan struct{})
	lateEnded := runInto(ctx, t, pods, storage.ListOptions{ResourceVersion: "4", Predicate: storage.Everything}, late)
	late.want(t, "ADDED d@5 shared")
	annotate(t, pods, "a", "1")
	annotate(t, pods, "b", "1")
	close(late.stuck)
	late.want(t, "MODIFIED a@6 shared", "MODIFIED b@7 shared")

	cancel()
	await(t, ended)
	await(t, lateEnded)
	if out.held() != 0 || late.held() != 0 {
		t.Errorf("the connections are held %d and %d times", out.held(), late.held())
	}
}

func TestWatchInto_ends(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	everything := storage.ListOptions{ResourceVersion: "2", Predicate: storage.Everything}

	stopping, stop := context.WithCancel(t.Context())
	ended := runInto(stopping, t, pods, everything, newOutput())
	stop()
	await(t, ended)

	gone := newOutput()
	await(t, runInto(t.Context(), t, pods, storage.ListOptions{ResourceVersion: "99", Predicate: storage.Everything}, gone))
	gone.want(t, "ERROR Expired")

	// The handler fails before it calls ResultChan.
	ctx, cancel := context.WithCancel(t.Context())
	w, err := pods.(intoOutput).WatchInto(ctx, "/pods/", everything, nil, newOutput())
	if err != nil {
		t.Fatal(err)
	}
	if watches := core.Stats().Watches; watches != 1 {
		t.Errorf("%d watches, want one", watches)
	}
	cancel()
	testwait.Until(t, "the watch has left", func() bool { return core.Stats().Watches == 0 })
	if _, more := <-w.ResultChan(); more {
		t.Error("a watch that has ended has events")
	}
}

// A client that does not read delays nothing.
func TestClose_stuckOutput(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	out := newOutput()
	out.stuck = make(chan struct{})
	ended := runInto(t.Context(), t, pods, storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything}, out)
	out.want(t, "ADDED a@2 shared")
	idle := newOutput()
	idleEnded := runInto(t.Context(), t, pods, storage.ListOptions{ResourceVersion: "2", Predicate: storage.Everything}, idle)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	}()
	await(t, closed)
	await(t, idleEnded)
	close(out.stuck)
	await(t, ended)
}

// The watch that writes buffered output waits for a connection whose client does not read.
func TestClose_stuckRelease(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	out := newOutput()
	out.stuckRelease, out.releasing = make(chan struct{}), make(chan struct{})
	ended := runInto(t.Context(), t, pods, storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything}, out)
	out.want(t, "ADDED a@2 shared")
	await(t, out.releasing)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	}()
	defer func() {
		close(out.stuckRelease)
		await(t, ended)
	}()
	await(t, closed)
}

// If encoding an event has panicked in one watch, another watch must not take it for encoded.
func TestCacheEncode_panics_failsForAll(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	w, err := pods.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "1", Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	object := (<-w.ResultChan()).Object.(runtime.CacheableObject)
	encode := func(w io.Writer) (err error) {
		defer func() {
			if reason := recover(); reason != nil {
				err = fmt.Errorf("panic: %v", reason)
			}
		}()
		return object.CacheEncode("id", func(runtime.Object, io.Writer) error { panic("a mistake") }, w)
	}
	for range 2 {
		var to bytes.Buffer
		if err := encode(&to); err == nil {
			t.Errorf("encoded %q without an error", to.String())
		}
	}
}

// The initial events of a watch leave few objects in the cache, and are sent as they are stored from the first watch
// on.
func TestWatchInto_initialEventsAsStored(t *testing.T) {
	l := newLedger()
	_, pods := open(t, l, mvcc.Options{Idle: true})
	largePods(t, pods, 8)
	core, pods := open(t, l.reopen(), mvcc.Options{Idle: true}) // nothing is decoded in it
	encoding := podEncoding()
	first := ""
	for _, time := range []string{"decoded", "known"} {
		out := newOutput()
		out.encoding = encoding
		ctx, cancel := context.WithCancel(t.Context())
		ended := runInto(ctx, t, pods, storage.ListOptions{SendInitialEvents: ptr.To(true), Predicate: withBookmarks(storage.Everything)}, out)
		sent := ""
		for !strings.Contains(sent, "BOOKMARK") {
			select {
			case some := <-out.flushed:
				sent += strings.Join(some, "")
			case <-ended:
				t.Fatalf("%s: the watch ended after %d bytes", time, len(sent))
			}
		}
		cancel()
		await(t, ended)
		if n := strings.Count(sent, "stored {"); n != 8 {
			t.Errorf("%s: %d objects of 8 are sent as they are stored", time, n)
		}
		if first == "" {
			first = sent
		} else if sent != first {
			t.Errorf("%s: other events than at first", time)
		}
		if kept := core.Stats().DecodedBytes; kept < 12<<20 || kept > 20<<20 {
			t.Errorf("%s: %d MiB of decoded objects are kept", time, kept>>20)
		}
	}
}
