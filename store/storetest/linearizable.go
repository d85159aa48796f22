package storetest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
)

// Subject is a store whose histories are checked.
type Subject struct {
	// Start opens the storage of pods under the prefix /pods; stop closes it.
	Start func(t testing.TB) (pods storage.Interface, stop func())
	// Crash cuts the power while requests are in progress: the next Start finds the content that a disk would have.
	// Nil if the store survives no crash.
	Crash func(t testing.TB)
	// Cached reports that reads at revision "0" may be late.
	Cached bool
	// Histories is the number of histories if the environment does not set it. The default is 100.
	Histories int
}

// StartAboveJournal returns a Start function for the revisioned core above a journal, each time in the same
// directory.
func StartAboveJournal(open OpenJournal) func(t testing.TB) (pods storage.Interface, stop func()) {
	var dir string
	return func(t testing.TB) (storage.Interface, func()) {
		t.Helper()
		if dir == "" {
			dir = t.TempDir()
		}
		j, err := open(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		core, err := mvcc.Open(context.Background(), j, mvcc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		pods, err := core.Open(Pods("/pods"))
		if err != nil {
			t.Fatal(err)
		}
		return pods, func() {
			if err := core.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	}
}

const (
	historyClients    = 6
	historyWatches    = 2
	historyOperations = 25 // of each client between two crashes
)

// RunLinearizable lets clients create, update, delete, get and list a few objects concurrently, with crashes in
// between if the subject can crash. It checks that the responses are those of a store that performs one operation
// after the other: no read is stale, no update is lost, no list is torn, revisions rise in the order of operations,
// and every watch sees every change once. It makes ANNEX_HISTORIES histories, and prints a line with its counts,
// under the name of the store.
func RunLinearizable(t *testing.T, name string, subject Subject) {
	rng := Seeded(t)
	var count linearizability
	defer count.print(name)
	pods, stop := subject.Start(t)
	defer func() { stop() }()
	for n := range Trials(t, "ANNEX_HISTORIES", cmp.Or(subject.Histories, 100)) {
		h := &recorder{namespace: fmt.Sprintf("h%d", n)}
		segments := 1
		if subject.Crash != nil {
			segments += rng.IntN(3)
		}
		if err := h.begin(pods); err != nil {
			t.Fatal(err)
		}
		for segment := range segments {
			c := &clients{recorder: h, pods: pods, segment: segment, seed: rng.Uint64(), cached: subject.Cached}
			if segment == segments-1 {
				if err := c.finish(); err != nil {
					t.Fatal(err)
				}
				break
			}
			crashed := func() {
				for range rng.IntN(100) {
					runtime.Gosched()
				}
				// Writes acknowledged from here on may not survive.
				h.stop()
				subject.Crash(t)
				h.end()
			}
			if err := c.crash(crashed, rng.IntN(historyClients*historyOperations)); err != nil {
				t.Fatal(err)
			}
			stop()
			pods, stop = subject.Start(t)
			h.resume()
			count.crashes++
		}
		count.check(t, h.entries, subject.Cached)
		if t.Failed() {
			return
		}
	}
}

// linearizability counts checked histories.
type linearizability struct{ histories, operations, crashes, violations int }

func (l *linearizability) check(t testing.TB, history []entry, cached bool) {
	t.Helper()
	l.histories++
	for _, e := range history {
		if e.Call != nil {
			l.operations++
		}
	}
	if err := checkHistory(history, cached); err != nil {
		l.violations++
		t.Errorf("history %d: %v\n%s", l.histories, err, transcript(history))
	}
}

func (l *linearizability) print(name string) {
	fmt.Printf("linearizability (%s): %d histories, %d operations, %d crashes, %d violations\n",
		name, l.histories, l.operations, l.crashes, l.violations)
}

// transcript returns a history in readable form.
func transcript(history []entry) string {
	var lines bytes.Buffer
	for _, e := range history {
		line, err := json.Marshal(e)
		if err != nil {
			return err.Error()
		}
		lines.Write(append(line, '\n'))
	}
	return lines.String()
}

// recorder records a history. Between stop and resume it records no outcomes. An operation begun meanwhile may still
// take effect, until end.
type recorder struct {
	namespace string
	// to also receives every entry, before record returns; nil discards them.
	to io.Writer

	mu      sync.Mutex
	stopped bool
	ended   bool
	entries []entry
	reached [historyWatches]uint64
	start   uint64
}

func (h *recorder) begin(pods storage.Interface) error {
	current, err := pods.GetCurrentResourceVersion(context.Background())
	h.start = current
	for i := range h.reached {
		h.reached[i] = current
	}
	return err
}

func (h *recorder) record(e entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.stopped && e.Call == nil {
		return
	}
	if e.Event != nil {
		h.reached[e.Watch] = e.Event.Revision
	}
	h.entries = append(h.entries, e)
	if h.to == nil {
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = h.to.Write(append(line, '\n'))
	}
	h.stopped = err != nil
}

func (h *recorder) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
}

// end ends a segment: calls from here on have no effect on the next segment.
func (h *recorder) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

func (h *recorder) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped, h.ended = false, false
}

// clients make one part of a history, up to a crash or its end.
type clients struct {
	*recorder
	pods    storage.Interface
	segment int
	seed    uint64
	cached  bool

	done  atomic.Int64 // operations
	after int64        // the number of operations after which run closes the channel
	told  chan struct{}
	over  atomic.Bool
}

func (c *clients) key(i int) string { return fmt.Sprintf("/pods/%s/pod-%d", c.namespace, i) }

const lastPod = "the-end"

// finish lets every client do its operations, and waits until the watches have seen all of their effects.
func (c *clients) finish() error {
	watching, err := c.watch(context.Background())
	if err != nil {
		return err
	}
	c.run(historyOperations)
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: lastPod}}
	if err := c.pods.Create(context.Background(), "/pods/"+c.namespace+"/"+lastPod, pod, nil, 0); err != nil {
		return fmt.Errorf("end the history: %w", err)
	}
	return watching()
}

// crash calls crashed after the given number of operations, and lets the clients continue until it returns.
func (c *clients) crash(crashed func(), after int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watching, err := c.watch(ctx)
	if err != nil {
		return err
	}
	c.after, c.told = int64(after+1), make(chan struct{})
	var crashing sync.WaitGroup
	crashing.Go(func() {
		<-c.told
		crashed()
		c.over.Store(true)
		cancel()
	})
	c.run(mostOperations)
	crashing.Wait()
	if err := watching(); !errors.Is(err, errWatchEnded) {
		return err
	}
	return nil
}

// mostOperations bounds the operations of a client while a crash takes its time.
const mostOperations = 3 * historyOperations

// run lets every client do n operations, or fewer if over is set before.
func (c *clients) run(n int) {
	var running sync.WaitGroup
	for i := range historyClients {
		client := &client{clients: c, number: i, rng: rand.New(rand.NewPCG(c.seed, uint64(i)))}
		running.Go(func() {
			for id := 0; id < n && !c.over.Load(); id++ {
				client.act(c.segment<<32 + id)
				if c.done.Add(1) == c.after {
					close(c.told)
				}
			}
		})
	}
	running.Wait()
}

var errWatchEnded = errors.New("a watch has ended")

// watch resumes the watches. The returned function waits until they have seen the last object, or have ended.
func (c *clients) watch(ctx context.Context) (wait func() error, err error) {
	errs := make(chan error, historyWatches)
	for i := range historyWatches {
		w, err := c.pods.Watch(ctx, "/pods/"+c.namespace+"/", storage.ListOptions{
			ResourceVersion: strconv.FormatUint(c.reached[i], 10), Recursive: true, Predicate: storage.Everything,
		})
		if err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
		go func() { defer w.Stop(); errs <- c.follow(i, w) }()
	}
	return func() error {
		var all error
		for range historyWatches {
			all = errors.Join(all, <-errs)
		}
		return all
	}, nil
}

func (c *clients) follow(i int, w watch.Interface) error {
	for event := range w.ResultChan() {
		if event.Type == watch.Bookmark {
			continue
		}
		pod, ok := podOf(event)
		if !ok {
			return fmt.Errorf("watch %d: %s %v", i, event.Type, event.Object)
		}
		if pod.Name == lastPod {
			return nil
		}
		var seen change
		if _, err := fmt.Sscanf(pod.Name, "pod-%d", &seen.Key); err != nil {
			return fmt.Errorf("watch %d: object %q: %w", i, pod.Name, err)
		}
		revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			return err
		}
		seen.Revision, seen.Content, seen.Deleted = revision, contentOf(pod), event.Type == watch.Deleted
		c.record(entry{Watch: i, Event: &seen})
	}
	return errWatchEnded
}

// client does one operation after the other.
type client struct {
	*clients
	number int
	rng    *rand.Rand
	known  [historyKeys]*example.Pod // as this client saw them last
}

// act does one random operation.
func (c *client) act(id int) {
	op := operation{Key: c.rng.IntN(historyKeys)}
	known := c.known[op.Key]
	insist := func() {
		if known != nil && c.rng.IntN(3) == 0 {
			op.Expected, _ = strconv.ParseUint(known.ResourceVersion, 10, 64)
		}
	}
	op.Content = fmt.Sprintf("%d.%d", c.number, id)
	switch n := c.rng.IntN(20); {
	case n < 4:
		op.Kind = "create"
	case n < 10:
		op.Kind, op.Upsert = "update", c.rng.IntN(3) == 0
		insist()
	case n < 12:
		op.Kind, op.Content = "delete", ""
		insist()
	case n < 16:
		op.Kind, op.Content, op.Stale = "get", "", c.rng.IntN(3) == 0
	case n < 19:
		op.Kind, op.Key, op.Content, op.Stale = "list", 0, "", c.rng.IntN(3) == 0
	default:
		op.Kind, op.Key, op.Content = "revision", 0, ""
	}
	c.record(entry{Client: c.number, ID: id, Call: &op})
	was := c.do(op)
	c.record(entry{Client: c.number, ID: id, Return: &was})
}

func (c *client) do(op operation) outcome {
	var was outcome
	out := &example.Pod{}
	err := c.call(op, &was, out)
	switch {
	case err == nil:
	case storage.IsNotFound(err):
		return outcome{Error: "notFound"}
	case storage.IsExist(err):
		return outcome{Error: "exists"}
	case storage.IsConflict(err), storage.IsInvalidObj(err), apierrors.IsConflict(err):
		return outcome{Error: "conflict"}
	case apierrors.IsServiceUnavailable(err):
		return outcome{Error: "refused"}
	default:
		return outcome{Error: "unknown", Saw: was.Saw}
	}
	if op.Kind == "list" || op.Kind == "revision" {
		return was
	}
	revision, err := strconv.ParseUint(out.ResourceVersion, 10, 64)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	was.Revision = revision
	switch op.Kind {
	case "get", "delete":
		was.Saw = contentOf(out)
	default:
		if content := contentOf(out); content != op.Content {
			return outcome{Error: fmt.Sprintf("got %q for %q", content, op.Content)}
		}
	}
	c.known[op.Key] = out
	return was
}

func (c *client) call(op operation, was *outcome, out *example.Pod) error {
	ctx, key := context.Background(), c.key(op.Key)
	var preconditions *storage.Preconditions
	if op.Expected != 0 {
		expected := strconv.FormatUint(op.Expected, 10)
		preconditions = &storage.Preconditions{ResourceVersion: &expected}
	}
	// A client may pass an object that it believes to be current.
	var suggestion apiruntime.Object
	if known := c.known[op.Key]; known != nil && c.rng.IntN(2) == 0 {
		suggestion = known.DeepCopy()
	}
	stale := ""
	if op.Stale {
		stale = "0"
	}
	switch op.Kind {
	case "create":
		return c.pods.Create(ctx, key, c.pod(op), out, 0)
	case "update":
		return c.pods.GuaranteedUpdate(ctx, key, out, op.Upsert, preconditions,
			storage.SimpleUpdate(func(current apiruntime.Object) (apiruntime.Object, error) {
				saw := current.(*example.Pod)
				was.Saw = contentOf(saw)
				next := c.pod(op)
				next.ResourceVersion = saw.ResourceVersion
				return next, nil
			}), suggestion)
	case "delete":
		return c.pods.Delete(ctx, key, out, preconditions, func(_ context.Context, current apiruntime.Object) error {
			was.Saw = contentOf(current.(*example.Pod))
			return nil
		}, suggestion, storage.DeleteOptions{})
	case "get":
		return c.pods.Get(ctx, key, storage.GetOptions{ResourceVersion: stale}, out)
	case "list":
		return c.list(ctx, stale, was)
	}
	revision, err := c.pods.GetCurrentResourceVersion(ctx)
	was.Revision = revision
	return err
}

func (c *client) pod(op operation) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:   c.namespace,
		Name:        fmt.Sprintf("pod-%d", op.Key),
		Annotations: map[string]string{"content": op.Content},
	}}
}

func (c *client) list(ctx context.Context, stale string, was *outcome) error {
	list := &example.PodList{}
	err := c.pods.GetList(ctx, "/pods/"+c.namespace+"/", storage.ListOptions{
		ResourceVersion: stale, Recursive: true, Predicate: storage.Everything,
	}, list)
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		var key int
		if _, err := fmt.Sscanf(pod.Name, "pod-%d", &key); err != nil {
			return fmt.Errorf("list shows %q: %w", pod.Name, err)
		}
		revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			return err
		}
		was.Objects[key] = object{contentOf(pod), revision}
	}
	was.Revision, err = strconv.ParseUint(list.ResourceVersion, 10, 64)
	return err
}

// The process to be killed gets its part in the environment, and reports the history through a pipe.
const (
	historyDirEnv  = "ANNEX_TEST_HISTORY_DIR"
	historyPartEnv = "ANNEX_TEST_HISTORY_PART"
)

// part identifies the part of a history that a process makes.
type part struct {
	Namespace string
	Segment   int
	Seed      uint64
	Reached   [historyWatches]uint64 // 0 stands for the current revision of the store
	Last      bool                   // it is not killed
}

// RunLinearizableKilled is RunLinearizable with processes that are killed, ANNEX_HISTORY_KILLS times, each at a
// random moment. The calling test is run again in those processes, as with RunCrash.
func RunLinearizableKilled(t *testing.T, name string, open OpenJournal) {
	t.Helper()
	if testing.Short() {
		t.Skip("kills processes")
	}
	if dir := os.Getenv(historyDirEnv); dir != "" {
		if err := makePart(t, open, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	rng := Seeded(t)
	var count linearizability
	defer count.print(name)
	dir := t.TempDir()
	for kills := Trials(t, "ANNEX_HISTORY_KILLS", 10); count.crashes < kills; {
		var history []entry
		p := part{Namespace: fmt.Sprintf("h%d", count.histories)}
		for segments := 2 + rng.IntN(3); p.Segment < segments; p.Segment++ {
			p.Seed, p.Last = rng.Uint64(), p.Segment == segments-1
			history = append(history, p.run(t, dir, rng)...)
			if !p.Last {
				count.crashes++
			}
			for _, e := range history {
				if e.Event != nil {
					p.Reached[e.Watch] = e.Event.Revision
				}
			}
		}
		count.check(t, history, false)
		if t.Failed() {
			return
		}
	}
}

// run makes a part in a process and returns the entries that the process reported.
func (p *part) run(t *testing.T, dir string, rng *rand.Rand) (told []entry) {
	t.Helper()
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run="+onlyThis(t))
	child.Env = append(os.Environ(), historyDirEnv+"="+dir, historyPartEnv+"="+string(encoded))
	var stderr bytes.Buffer
	child.Stderr = &stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	child.ExtraFiles = []*os.File{w}
	err = child.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	killAfter := rng.IntN(mostOperations * historyClients)
	killed := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			if killed {
				break // an incomplete line
			}
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if e.Call == nil && e.Return == nil && e.Event == nil {
			// The revisions at which the watches begin.
			for i := range p.Reached {
				p.Reached[i] = uint64(e.ID)
			}
			continue
		}
		told = append(told, e)
		if !p.Last && !killed && len(told) > killAfter {
			killed = true
			_ = child.Process.Kill()
		}
	}
	if err := child.Wait(); !killed && (err != nil || !p.Last) {
		t.Fatalf("the process ended of itself: %v\n%s", err, stderr.String())
	}
	return told
}

// makePart is the child's side.
func makePart(t *testing.T, open OpenJournal, dir string) error {
	var p part
	if err := json.Unmarshal([]byte(os.Getenv(historyPartEnv)), &p); err != nil {
		return err
	}
	j, err := open(t, dir)
	if err != nil {
		return err
	}
	core, err := mvcc.Open(context.Background(), j, mvcc.Options{})
	if err != nil {
		return err
	}
	pods, err := core.Open(Pods("/pods"))
	if err != nil {
		return err
	}
	h := &recorder{namespace: p.Namespace, to: os.NewFile(3, "history"), reached: p.Reached}
	if p.Reached[0] == 0 {
		if err := h.begin(pods); err != nil {
			return err
		}
		h.record(entry{ID: int(h.start)})
	}
	c := &clients{recorder: h, pods: pods, segment: p.Segment, seed: p.Seed}
	if p.Last {
		return errors.Join(c.finish(), core.Close())
	}
	if _, err := c.watch(context.Background()); err != nil {
		return err
	}
	c.run(mostOperations)
	select {} // until it is killed
}
