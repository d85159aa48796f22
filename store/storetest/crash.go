package storetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/journal"
)

// The crash test runs itself again in a process that is killed. That process gets its directory and the revisions at
// which to resume its watches in the environment. It reports its actions over pipes, one for the acknowledgements and
// one for each watch, with a line for each action.
const (
	crashDirEnv    = "ANNEX_TEST_CRASH_DIR"
	crashResumeEnv = "ANNEX_TEST_CRASH_RESUME"
	crashSeedEnv   = "ANNEX_TEST_CRASH_SEED"

	crashWriters    = 64
	crashNamespaces = 8
	// Compaction runs all the time, and no watch is ever further behind than half of the remaining history.
	crashHistory = 4000
	crashLag     = crashHistory / 2
)

// crashWatches are the watched keys; the first watch sees everything.
var crashWatches = []string{"/pods/", "/pods/", "/pods/ns3/"}

// RunCrash kills a process that writes and watches, ANNEX_CRASH_KILLS times, each time at a random moment, and checks
// the state that the next process finds: no acknowledged write is lost, no revision has two contents, and watches
// resume without a gap. It prints a line with its counts, under the name of the journal.
//
// The calling test is run again in a process of its own and must behave the same there: nothing expensive may come
// before RunCrash, and nothing that needs to be undone.
func RunCrash(t *testing.T, name string, open OpenJournal) {
	t.Helper()
	if testing.Short() {
		t.Skip("kills processes")
	}
	if dir := os.Getenv(crashDirEnv); dir != "" {
		if err := runVictim(t, open, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1) // a victim does not end by itself
	}
	rng := Seeded(t)
	c := &crashes{open: open, told: map[uint64]fact{}, seen: slices.Repeat([]uint64{1}, len(crashWatches))}
	dir := t.TempDir()
	for range Trials(t, "ANNEX_CRASH_KILLS", 5) {
		c.generation(t, dir, rng)
		if t.Failed() {
			break
		}
	}
	c.verifyState(t, dir)
	fmt.Printf("crash (%s): %d kills, %d acknowledged writes, %d lost, %d revisions reused, %d watch events, %d doubled, %d skipped\n",
		name, c.kills, c.acknowledged, c.lost, c.reused, c.events, c.doubled, c.skipped)
}

// victim is the process to be killed.
type victim struct {
	core *mvcc.Core
	pods storage.Interface
	acks *os.File

	mu       sync.Mutex
	caughtUp sync.Cond
	position uint64 // of the first watch
}

// runVictim writes and watches until it is killed or fails.
func runVictim(t *testing.T, open OpenJournal, dir string) error {
	v := &victim{acks: os.NewFile(3, "acknowledgements")}
	v.caughtUp.L = &v.mu
	if _, err := fmt.Fprintln(v.acks, "opening"); err != nil {
		return err
	}
	j, err := open(t, dir)
	if err != nil {
		return err
	}
	v.core, err = mvcc.Open(context.Background(), j, mvcc.Options{
		History: mvcc.History{MinAge: -1, MinRevisions: crashHistory},
	})
	if err != nil {
		return err
	}
	if v.pods, err = v.core.Open(Pods("/pods")); err != nil {
		return err
	}
	failed := make(chan error)
	for i, from := range strings.Fields(os.Getenv(crashResumeEnv)) {
		if i == 0 {
			if v.position, err = strconv.ParseUint(from, 10, 64); err != nil {
				return err
			}
		}
		w, err := v.pods.Watch(context.Background(), crashWatches[i], storage.ListOptions{
			ResourceVersion: from,
			Recursive:       true,
			Predicate:       storage.Everything,
		})
		if err != nil {
			return err
		}
		go func() { failed <- v.report(w, os.NewFile(uintptr(4+i), "watch"), i == 0) }()
	}
	seedNumber, err := strconv.ParseUint(os.Getenv(crashSeedEnv), 10, 64)
	if err != nil {
		return err
	}
	for writer := range crashWriters {
		rng := rand.New(rand.NewPCG(seedNumber, uint64(writer)))
		go func() { failed <- v.write(writer, rng) }()
	}
	go func() {
		for {
			if err := v.core.CompactHistory(context.Background()); err != nil {
				failed <- err
			}
		}
	}()
	return <-failed
}

// report writes the events of a watch to a pipe.
func (v *victim) report(w watch.Interface, to io.Writer, paces bool) error {
	var lines []byte
	for event := range w.ResultChan() {
		lines = lines[:0]
		var last uint64
		for more := true; more; {
			object := event.Object
			if cacheable, ok := object.(runtime.CacheableObject); ok {
				object = cacheable.GetObject()
			}
			pod, ok := object.(*example.Pod)
			if !ok {
				return fmt.Errorf("watch: %s %v", event.Type, object)
			}
			revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
			if err != nil {
				return err
			}
			last = revision
			content := contentOf(pod)
			if event.Type == watch.Deleted {
				content = deletedContent
			}
			lines = fmt.Appendf(lines, "%d %s %s\n", revision, keyOfPod(pod), content)
			select {
			case event, more = <-w.ResultChan():
			default:
				more = false
			}
		}
		if _, err := to.Write(lines); err != nil {
			return err
		}
		if paces {
			v.mu.Lock()
			v.position = last
			v.mu.Unlock()
			v.caughtUp.Broadcast()
		}
	}
	return errors.New("a watch has ended")
}

// write changes random objects and reports the acknowledged writes.
func (v *victim) write(writer int, rng *rand.Rand) error {
	ctx := context.Background()
	for n := 0; ; n++ {
		v.mu.Lock()
		for v.core.Revision() > v.position+crashLag {
			v.caughtUp.Wait()
		}
		v.mu.Unlock()

		// Most objects belong to one writer, some to all.
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("ns%d", writer%crashNamespaces),
			Name:      fmt.Sprintf("pod-%d-%d", writer, rng.IntN(10)),
		}}
		if rng.IntN(10) == 0 {
			pod.Namespace, pod.Name = "ns3", fmt.Sprintf("shared-%d", rng.IntN(3))
		}
		out := &example.Pod{}
		var content string
		var err error
		if rng.IntN(6) == 0 {
			content = deletedContent
			err = v.pods.Delete(ctx, keyOfPod(pod), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		} else {
			content = fmt.Sprintf("[[%d-%d-%d-%d]]", os.Getpid(), rng.Uint64(), writer, n)
			pod.Annotations = map[string]string{"content": content, "padding": strings.Repeat("x", rng.IntN(2000))}
			err = v.pods.GuaranteedUpdate(ctx, keyOfPod(pod), out, true, nil,
				storage.SimpleUpdate(func(current runtime.Object) (runtime.Object, error) {
					next := pod.DeepCopy()
					next.ResourceVersion = current.(*example.Pod).ResourceVersion
					return next, nil
				}), nil)
		}
		if storage.IsNotFound(err) || storage.IsConflict(err) || apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", keyOfPod(pod), err)
		}
		if _, err := fmt.Fprintf(v.acks, "%s %s %s\n", out.ResourceVersion, keyOfPod(pod), content); err != nil {
			return err
		}
	}
}

// deletedContent stands for the content in lines about deletions.
const deletedContent = "deleted"

func keyOfPod(pod *example.Pod) string { return "/pods/" + pod.Namespace + "/" + pod.Name }

func contentOf(pod *example.Pod) string { return pod.Annotations["content"] }

// fact is the effect of one revision, as a client learned it.
type fact struct{ key, content string }

func parseFact(line string) (revision uint64, f fact, err error) {
	if _, err := fmt.Sscanf(line, "%d %s %s", &revision, &f.key, &f.content); err != nil {
		return 0, fact{}, fmt.Errorf("line %q: %w", line, err)
	}
	return revision, f, nil
}

func factOf(r journal.Record) fact {
	if r.Deleted {
		return fact{r.Key, deletedContent}
	}
	start, end := bytes.Index(r.Value, []byte("[[")), bytes.Index(r.Value, []byte("]]"))
	if start < 0 || end < start {
		return fact{r.Key, "no content"}
	}
	return fact{r.Key, string(r.Value[start : end+2])}
}

// crashes is the state of the parent: all acknowledgements and events, over all generations of the victim.
type crashes struct {
	open OpenJournal
	told map[uint64]fact
	seen []uint64 // by watch: the last event

	kills, acknowledged, events    int
	lost, reused, doubled, skipped int
}

// generation starts a victim, kills it at a random moment, and processes its reports.
func (c *crashes) generation(t *testing.T, dir string, rng *rand.Rand) {
	t.Helper()
	var resume []string
	for _, revision := range c.seen {
		resume = append(resume, strconv.FormatUint(revision, 10))
	}
	child := exec.Command(os.Args[0], "-test.run="+onlyThis(t))
	child.Env = append(os.Environ(),
		crashDirEnv+"="+dir,
		crashResumeEnv+"="+strings.Join(resume, " "),
		crashSeedEnv+"="+strconv.FormatUint(rng.Uint64(), 10))
	var stderr bytes.Buffer
	child.Stderr = &stderr
	var readers []*os.File
	for range 1 + len(crashWatches) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		readers, child.ExtraFiles = append(readers, r), append(child.ExtraFiles, w)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for _, w := range child.ExtraFiles {
		_ = w.Close()
	}

	// One time in ten the victim dies while it is opening its journal or soon after.
	killAfter := int64(rng.IntN(3000))
	if rng.IntN(10) == 0 {
		killAfter = int64(rng.IntN(3))
	}
	var killed atomic.Bool
	lines := make([][]string, len(readers))
	var reading sync.WaitGroup
	for i, r := range readers {
		reading.Go(func() {
			for scanner := bufio.NewScanner(r); scanner.Scan(); {
				lines[i] = append(lines[i], scanner.Text())
				if i == 0 && int64(len(lines[i])) > killAfter && killed.CompareAndSwap(false, true) {
					_ = child.Process.Kill()
				}
			}
		})
	}
	reading.Wait()
	if err := child.Wait(); !killed.Load() {
		t.Fatalf("the victim died of itself: %v\n%s", err, stderr.String())
	}
	c.kills++

	for i := range lines {
		for n, line := range lines[i] {
			if i == 0 && n == 0 {
				continue // "opening"
			}
			revision, f, err := parseFact(line)
			if err != nil {
				t.Fatal(err)
			}
			c.note(t, "was told", revision, f)
			if i == 0 {
				c.acknowledged++
			}
		}
	}
	c.verify(t, dir)
	for i := range c.seen {
		c.follow(t, i, lines[1+i])
	}
}

// onlyThis returns the -run pattern that selects only this test.
func onlyThis(t *testing.T) string {
	parts := strings.Split(t.Name(), "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// note records a fact. A revision must never have two contents.
func (c *crashes) note(t *testing.T, how string, revision uint64, f fact) {
	t.Helper()
	before, known := c.told[revision]
	if known && before != f {
		c.reused++
		t.Errorf("revision %d %s as %v, was %v before", revision, how, f, before)
	}
	c.told[revision] = f
}

// verify opens the journal that a victim left, and looks for all reported facts.
func (c *crashes) verify(t *testing.T, dir string) {
	t.Helper()
	j, err := c.open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	held := map[uint64]bool{}
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		held[r.Revision] = true
		c.note(t, "was read", r.Revision, factOf(r))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	superseded := map[string]uint64{}
	for _, revision := range slices.Backward(slices.Sorted(maps.Keys(c.told))) {
		f := c.told[revision]
		// Compaction removes deletions, and records superseded at or before its revision.
		next, exists := superseded[f.key]
		gone := exists && next <= compacted || f.content == deletedContent && revision <= compacted
		if !held[revision] && !gone {
			c.lost++
			t.Errorf("revision %d, %v, is lost; compacted revision %d, superseded at %d", revision, f, compacted, next)
		}
		if held[revision] && exists && next <= compacted {
			c.lost++
			t.Errorf("revision %d, %v, is there again, but was superseded at %d; compacted revision %d", revision, f, next, compacted)
		}
		superseded[f.key] = revision
	}
}

// follow checks that the events of a watch resume exactly where they ended.
func (c *crashes) follow(t *testing.T, i int, lines []string) {
	t.Helper()
	for _, line := range lines {
		revision, _, err := parseFact(line)
		if err != nil {
			t.Fatal(err)
		}
		c.events++
		if revision <= c.seen[i] {
			c.doubled++
			t.Errorf("watch %d: revision %d came after %d", i, revision, c.seen[i])
			continue
		}
		for missed := c.seen[i] + 1; missed < revision; missed++ {
			f, known := c.told[missed]
			if !known || strings.HasPrefix(f.key, crashWatches[i]) {
				c.skipped++
				t.Errorf("watch %d: revision %d came after %d, but %d is %v", i, revision, c.seen[i], missed, f)
			}
		}
		c.seen[i] = revision
	}
}

// verifyState compares the final state of the core with the last reported fact of each object.
func (c *crashes) verifyState(t *testing.T, dir string) {
	t.Helper()
	j, err := c.open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	pods, err := core.Open(Pods("/pods"))
	if err != nil {
		t.Fatal(err)
	}
	list := &example.PodList{}
	if err := pods.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	want, at := map[string]string{}, map[string]uint64{}
	for revision, f := range c.told {
		if revision > at[f.key] {
			want[f.key], at[f.key] = f.content, revision
		}
	}
	for i := range list.Items {
		pod := &list.Items[i]
		key := keyOfPod(pod)
		if want[key] != contentOf(pod) || strconv.FormatUint(at[key], 10) != pod.ResourceVersion {
			t.Errorf("%s is %s at revision %s, want %s at %d", key, contentOf(pod), pod.ResourceVersion, want[key], at[key])
		}
		delete(want, key)
	}
	for key, content := range want {
		if content != deletedContent {
			t.Errorf("%s is missing, want %s", key, content)
		}
	}
}
