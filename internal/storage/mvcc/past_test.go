package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// shelves are journals that keep a history, by name; open opens the journal in a directory again.
var shelves = map[string]func(dir string) (journal.Journal, error){
	"embedded": func(dir string) (journal.Journal, error) {
		return embedded.Open(filepath.Join(dir, "e"), embedded.Options{})
	},
	"files":  func(dir string) (journal.Journal, error) { return files.Open(filepath.Join(dir, "f"), files.Options{}) },
	"memory": func(string) (journal.Journal, error) { return memory.New(), nil },
}

// openKeeping opens a core in memory, closed at the end of the test, with pods whose history is kept.
func openKeeping(t *testing.T, clock *clocktesting.FakeClock, keep store.Retention) (*mvcc.Core, store.Historian) {
	t.Helper()
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{Clock: clock, History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	return core, keeping(t, core, keep)
}

// keeping opens the pods of a core, and keeps their history.
func keeping(t testing.TB, core *mvcc.Core, keep store.Retention) store.Historian {
	t.Helper()
	resource := storetest.Pods("/pods")
	resource.Retention = &keep
	pods, err := core.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	return pods.(store.Historian)
}

// listed is the history of a pod as text, the newest revision first: its revisions, notes and users.
func listed(t testing.TB, pods store.Historian, name string, before uint64, limit int) string {
	t.Helper()
	page, err := pods.History(context.Background(), key(name), before, limit)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range page.Revisions {
		text := fmt.Sprintf("%d<%d", r.Revision, r.Previous)
		if r.Deleted {
			text += " deleted"
		} else if r.Object != nil {
			text += " " + noteOf(r.Object.(*example.Pod))
		}
		if r.User != "" {
			text += " by " + r.User
		}
		all = append(all, text)
	}
	if page.More {
		all = append(all, "more")
	}
	return strings.Join(all, ", ")
}

func past(pods store.Historian, name string, at store.Point) (string, error) {
	out := &example.Pod{}
	if err := pods.Past(context.Background(), key(name), at, out); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", out.ResourceVersion, noteOf(out)), nil
}

// noteOf is the note of a pod, empty for that of samplePod.
func noteOf(pod *example.Pod) string {
	if note := pod.Annotations["note"]; note != samplePod("").Annotations["note"] {
		return note
	}
	return ""
}

// compactAll compacts the whole history of a core, and trims the kept one.
func compactAll(t testing.TB, core *mvcc.Core) {
	t.Helper()
	if err := core.Compact(context.Background(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	if err := core.CompactHistory(context.Background()); err != nil {
		t.Fatal(err)
	}
}

var idleHistory = mvcc.History{MinAge: 24 * time.Hour, MinRevisions: 1 << 40}

func TestHistory_withoutRetention_endsAtTheCompactedRevision(t *testing.T) {
	t.Parallel()
	core, opened := open(t, memory.New(), mvcc.Options{History: idleHistory})
	pods := opened.(store.Historian)
	create(t, pods, "a") // revision 2
	annotate(t, pods, "a", "one")
	annotate(t, pods, "a", "two")
	annotate(t, pods, "a", "three")
	if got, want := listed(t, pods, "a", 5, 2), "4<3 two, 3<2 one, more"; got != want {
		t.Errorf("a page: %s, want %s", got, want)
	}
	if err := core.Compact(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if got, want := listed(t, pods, "a", 0, 9), "5<4 three, 4<3 two"; got != want {
		t.Errorf("after the compaction: %s, want %s", got, want)
	}
	var notKept *store.NotKeptError
	if got, err := past(pods, "a", store.Point{Revision: 3}); !errors.As(err, &notKept) || notKept.Since.Revision != 4 {
		t.Errorf("before the compacted revision: %q, %v", got, err)
	}
	if _, err := past(pods, "b", store.Point{Revision: 4}); !storage.IsNotFound(err) {
		t.Errorf("an object that never was: %v", err)
	}
	var future *store.FutureError
	if _, err := past(pods, "a", store.Point{Revision: 6}); !errors.As(err, &future) || future.Newest.Revision != 5 {
		t.Errorf("a future revision: %v", err)
	}
	if _, err := past(pods, "a", store.Point{Time: time.Now().Add(time.Hour)}); !errors.As(err, &future) {
		t.Errorf("a future time: %v", err)
	}
}

func TestHistory_kept_survivesCompactionAndRestart(t *testing.T) {
	t.Parallel()
	for name, opening := range shelves {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, clock := t.TempDir(), newClock()
			j, err := opening(dir)
			if err != nil {
				t.Fatal(err)
			}
			core, err := mvcc.Open(t.Context(), j, mvcc.Options{Clock: clock, History: idleHistory})
			if err != nil {
				t.Fatal(err)
			}
			pods := keeping(t, core, store.Retention{Age: 30 * 24 * time.Hour})
			anna := request.WithUser(t.Context(), &user.DefaultInfo{Name: "anna"})
			create(t, pods, "a") // revision 2
			for _, note := range []string{"one", "two", "three"} {
				clock.Step(time.Minute)
				if _, err := tryAnnotate(anna, pods, "a", note); err != nil {
					t.Fatal(err)
				}
			}
			clock.Step(time.Minute)
			remove(t, pods, "a") // revision 6
			clock.Step(time.Minute)
			create(t, pods, "a")
			create(t, pods, "b")
			clock.Step(time.Minute)
			remove(t, pods, "b") // revision 9
			check := func(when string) {
				t.Helper()
				want := "7<0 , 6<5 deleted, 5<4 three by anna, 4<3 two by anna, 3<2 one by anna, 2<0 "
				if got := listed(t, pods, "a", 0, 9); got != want {
					t.Errorf("%s: %s, want %s", when, got, want)
				}
				if got, want := listed(t, pods, "a", 5, 2), "4<3 two by anna, 3<2 one by anna, more"; got != want {
					t.Errorf("%s, a page: %s, want %s", when, got, want)
				}
				for _, at := range []struct {
					point store.Point
					want  string
				}{
					{store.Point{Revision: 2}, "2 "}, {store.Point{Revision: 4}, "4 two"}, {store.Point{Revision: 6}, ""},
					{store.Point{Revision: 8}, "7 "}, {store.Point{Time: epoch.Add(150 * time.Second)}, "4 two"},
					{store.Point{Time: epoch.Add(3 * time.Minute)}, "5 three"}, {store.Point{Time: epoch.Add(4 * time.Minute)}, ""},
					{store.Point{Time: epoch.Add(6 * time.Minute)}, "7 "},
				} {
					got, err := past(pods, "a", at.point)
					if got != at.want || (at.want == "") != storage.IsNotFound(err) {
						t.Errorf("%s, at %s: %q, %v, want %q", when, at.point, got, err, at.want)
					}
				}
				page, err := pods.Deletions(t.Context(), "/pods/ns/", 0, 9)
				if err != nil || len(page.Revisions) != 1 || page.Revisions[0].Revision != 9 ||
					page.Revisions[0].Object.(*example.Pod).Name != "b" {
					t.Errorf("%s: the deletions are %+v, %v", when, page.Revisions, err)
				}
			}
			check("before the compaction")
			if err := core.Compact(t.Context(), 4); err != nil {
				t.Fatal(err)
			}
			check("after a part was compacted")
			compactAll(t, core)
			check("after the compaction")
			if name == "memory" {
				return
			}
			if err := core.Close(); err != nil {
				t.Fatal(err)
			}
			if j, err = opening(dir); err != nil {
				t.Fatal(err)
			}
			if core, err = mvcc.Open(t.Context(), j, mvcc.Options{Clock: clock, History: idleHistory}); err != nil {
				t.Fatal(err)
			}
			defer core.Close()
			pods = keeping(t, core, store.Retention{Age: 30 * 24 * time.Hour})
			check("after a restart")
			annotate(t, pods, "a", "later") // revision 10
			compactAll(t, core)
			if got, want := listed(t, pods, "a", 0, 2), "10<7 later, 7<0 , more"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

func TestHistory_kept_byNumber(t *testing.T) {
	t.Parallel()
	clock := newClock()
	core, pods := openKeeping(t, clock, store.Retention{Revisions: 2})
	create(t, pods, "a") // revision 2
	create(t, pods, "b")
	for i := range 5 { // the last one is revision 8
		annotate(t, pods, "a", fmt.Sprint(i))
		if i%2 == 0 {
			compactAll(t, core)
		}
	}
	compactAll(t, core)
	if got, want := listed(t, pods, "a", 0, 9), "8<7 4, 7<6 3, 6<5 2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var notKept *store.NotKeptError
	if _, err := past(pods, "a", store.Point{Revision: 5}); !errors.As(err, &notKept) || notKept.Since.Revision != 6 {
		t.Errorf("a revision beyond the number: %v", err)
	}
	if got, err := past(pods, "b", store.Point{Revision: 5}); err != nil || got != "3 " {
		t.Errorf("another object: %q, %v", got, err)
	}
	remove(t, pods, "a") // revision 9
	compactAll(t, core)
	if got, want := listed(t, pods, "a", 0, 9), "9<8 deleted, 8<7 4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	clock.Step(store.DeletedAge + time.Minute)
	compactAll(t, core)
	if got := listed(t, pods, "a", 0, 9); got != "" {
		t.Errorf("long after the deletion: %s", got)
	}
	if _, err := past(pods, "a", store.Point{Revision: 8}); !errors.As(err, &notKept) || notKept.Since.Revision != 9 {
		t.Errorf("a forgotten object: %v", err)
	}
	if kept := core.Kept(); len(kept) != 1 || kept[0].Records != 0 || kept[0].Bytes != 0 {
		t.Errorf("%+v is left", kept)
	}
}

func TestHistory_kept_byAgeAndBytes(t *testing.T) {
	t.Parallel()
	clock := newClock()
	core, pods := openKeeping(t, clock, store.Retention{Age: time.Hour})
	create(t, pods, "a") // revision 2
	annotate(t, pods, "a", "one")
	clock.Step(45 * time.Minute)
	annotate(t, pods, "a", "two")
	clock.Step(30 * time.Minute)
	compactAll(t, core)
	if got, want := listed(t, pods, "a", 0, 9), "4<3 two, 3<2 one"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := past(pods, "a", store.Point{Time: clock.Now().Add(-time.Hour)}); err != nil || got != "3 one" {
		t.Errorf("an hour ago: %q, %v", got, err)
	}
	if kept := core.Kept(); len(kept) != 1 || kept[0].Records != 1 || kept[0].Bytes == 0 || kept[0].Since.Revision != 3 {
		t.Errorf("kept %+v", kept)
	}
	pods = keeping(t, core, store.Retention{Age: time.Hour, Bytes: 1})
	compactAll(t, core)
	if got, want := listed(t, pods, "a", 0, 9), "4<3 two"; got != want {
		t.Errorf("with one byte: %s, want %s", got, want)
	}
	keeping(t, core, store.Retention{})
	compactAll(t, core)
	if kept := core.Kept(); len(kept) != 0 {
		t.Errorf("without a retention: %+v", kept)
	}
}

func TestHistory_kept_crash_repeatsTheMove(t *testing.T) {
	t.Parallel()
	base := &memory.Store{}
	first, err := base.OpenJournal(t.Context(), driver.Env{})
	if err != nil {
		t.Fatal(err)
	}
	core, err := mvcc.Open(t.Context(), first, mvcc.Options{History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	pods := keeping(t, core, store.Retention{Age: time.Hour})
	create(t, pods, "a")
	for i := range 10 {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	whole := listed(t, pods, "a", 0, 99)
	before := base.Fork() // as a crash leaves it that undoes the last trim
	compactAll(t, core)
	if got := listed(t, pods, "a", 0, 99); got != whole {
		t.Errorf("%s, want %s", got, whole)
	}
	if err := core.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := before.OpenJournal(t.Context(), driver.Env{})
	if err != nil {
		t.Fatal(err)
	}
	core, err = mvcc.Open(t.Context(), again, mvcc.Options{History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	// The journal remembers the retention: a compaction before the resource is open drops nothing.
	compactAll(t, core)
	pods = keeping(t, core, store.Retention{Age: time.Hour})
	if got := listed(t, pods, "a", 0, 99); got != whole {
		t.Errorf("after the crash: %s, want %s", got, whole)
	}
	if kept := core.Kept(); len(kept) != 1 || kept[0].Records != 10 {
		t.Errorf("kept %+v", kept)
	}
}

func TestHistory_kept_whileCompacted(t *testing.T) {
	t.Parallel()
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	pods := keeping(t, core, store.Retention{Age: time.Hour})
	create(t, pods, "a")
	const updates = 2000
	for i := range updates {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	done := make(chan error, 1)
	go func() {
		for revision := uint64(3); revision < updates; revision += 7 {
			if err := core.Compact(context.Background(), revision); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		var seen []uint64
		for before := uint64(0); ; {
			page, err := pods.History(t.Context(), key("a"), before, 300)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.Revisions {
				seen = append(seen, r.Revision)
			}
			if !page.More {
				break
			}
			before = seen[len(seen)-1]
		}
		slices.Reverse(seen)
		for i, revision := range seen {
			if len(seen) != updates+1 || revision != uint64(i)+2 {
				t.Fatalf("%d revisions, number %d is %d", len(seen), i, revision)
			}
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// fullShelf is a journal on a disk that is full while full is set.
type fullShelf struct {
	journal.Shelf
	full bool
}

var errShelfFull = errors.New("no space left")

func (j *fullShelf) Trim(compacted uint64, drop []uint64) error {
	return j.TrimAndShelve(compacted, drop, nil)
}

func (j *fullShelf) TrimAndShelve(compacted uint64, drop []uint64, edits []journal.ShelfEdit) error {
	if j.full {
		return errShelfFull
	}
	return j.Shelf.TrimAndShelve(compacted, drop, edits)
}

func TestHistory_kept_fullDisk_movesLater(t *testing.T) {
	t.Parallel()
	base := &memory.Store{}
	opened, err := base.OpenJournal(t.Context(), driver.Env{})
	if err != nil {
		t.Fatal(err)
	}
	j := &fullShelf{Shelf: opened.(journal.Shelf)}
	core, err := mvcc.Open(t.Context(), j, mvcc.Options{History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	pods := keeping(t, core, store.Retention{Age: time.Hour})
	create(t, pods, "a")
	for i := range 10 {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	whole := listed(t, pods, "a", 0, 99)
	j.full = true
	if err := core.Compact(t.Context(), core.Revision()-5); !errors.Is(err, errShelfFull) {
		t.Fatalf("Compact on a full disk: %v", err)
	}
	if got := listed(t, pods, "a", 0, 99); got != whole {
		t.Errorf("while the disk is full: %s, want %s", got, whole)
	}
	if got, err := past(pods, "a", store.Point{Revision: core.Revision() - 8}); err != nil || !strings.HasSuffix(got, " 1") {
		t.Errorf("a revision that could not be moved: %q, %v", got, err)
	}
	if err := core.CompactHistory(t.Context()); !errors.Is(err, errShelfFull) {
		t.Fatalf("CompactHistory on a full disk: %v", err)
	}
	resource := storetest.Pods("/pods")
	resource.Retention = &store.Retention{Age: 2 * time.Hour}
	if _, err := core.Open(resource); !errors.Is(err, errShelfFull) {
		t.Errorf("another retention on a full disk: %v", err)
	}
	j.full = false
	// The journal must not learn of a compacted revision without the move of its records.
	keeping(t, core, store.Retention{Age: 2 * time.Hour})
	if got := listed(t, pods, "a", 0, 99); got != whole {
		t.Errorf("after the disk was full: %s, want %s", got, whole)
	}
	crashed, err := base.Fork().OpenJournal(t.Context(), driver.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if err := core.Close(); err != nil {
		t.Fatal(err)
	}
	if core, err = mvcc.Open(t.Context(), crashed, mvcc.Options{History: idleHistory}); err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	if got := listed(t, keeping(t, core, store.Retention{Age: time.Hour}), "a", 0, 99); got != whole {
		t.Errorf("after a crash: %s, want %s", got, whole)
	}
}

func TestHistory_kept_expiresOneByOne(t *testing.T) {
	t.Parallel()
	clock := newClock()
	core, pods := openKeeping(t, clock, store.Retention{Age: time.Hour})
	create(t, pods, "a") // revision 2
	for i := range 4 {
		clock.Step(10 * time.Minute)
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	compactAll(t, core)
	for _, want := range []string{
		"6<5 3, 5<4 2, 4<3 1, 3<2 0", "6<5 3, 5<4 2, 4<3 1", "6<5 3, 5<4 2", "6<5 3",
	} {
		if clock.Now().Sub(epoch) < time.Hour {
			clock.Step(time.Hour + time.Second - 30*time.Minute)
		} else {
			clock.Step(10 * time.Minute)
		}
		compactAll(t, core)
		if got := listed(t, pods, "a", 0, 9); got != want {
			t.Errorf("after %v: %s, want %s", clock.Now().Sub(epoch), got, want)
		}
	}
}

func TestHistory_kept_againAfterAPause_isCompleteSinceThen(t *testing.T) {
	t.Parallel()
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{History: idleHistory})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	pods := keeping(t, core, store.Retention{Age: time.Hour})
	create(t, pods, "a") // revision 2
	annotate(t, pods, "a", "one")
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	keeping(t, core, store.Retention{})
	annotate(t, pods, "a", "two")
	annotate(t, pods, "a", "three") // revision 5
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	var notKept *store.NotKeptError
	if got, err := past(pods, "a", store.Point{Revision: 4}); !errors.As(err, &notKept) || notKept.Since.Revision != 5 {
		t.Errorf("a revision of the pause, in it: %q, %v", got, err)
	}
	keeping(t, core, store.Retention{Age: time.Hour})
	if got, err := past(pods, "a", store.Point{Revision: 4}); !errors.As(err, &notKept) || notKept.Since.Revision != 5 {
		t.Errorf("a revision of the pause: %q, %v", got, err)
	}
	if got, err := past(pods, "a", store.Point{Revision: 5}); err != nil || got != "5 three" {
		t.Errorf("the revision after the pause: %q, %v", got, err)
	}
}

func TestHistory_kept_listsThePast(t *testing.T) {
	t.Parallel()
	clock := newClock()
	core, pods := openKeeping(t, clock, store.Retention{Age: time.Hour})
	names := func(at store.Point) string {
		t.Helper()
		list := &example.PodList{}
		if err := pods.PastList(t.Context(), "/pods/ns/", at, storage.Everything, list); err != nil {
			t.Fatalf("at %s: %v", at, err)
		}
		all := []string{list.ResourceVersion}
		for _, p := range list.Items {
			all = append(all, p.Name+noteOf(&p)+"@"+p.ResourceVersion)
		}
		return strings.Join(all, " ")
	}
	create(t, pods, "a") // revision 2
	create(t, pods, "b")
	clock.Step(time.Minute)
	annotate(t, pods, "a", "1") // revision 4
	remove(t, pods, "b")
	clock.Step(time.Minute)
	create(t, pods, "c") // revision 6
	check := func(when string) {
		t.Helper()
		for _, test := range []struct {
			at   store.Point
			want string
		}{
			{store.Point{Revision: 2}, "2 a@2"}, {store.Point{Revision: 3}, "3 a@2 b@3"}, {store.Point{Revision: 4}, "4 a1@4 b@3"},
			{store.Point{Revision: 5}, "5 a1@4"}, {store.Point{Time: epoch.Add(90 * time.Second)}, "4 a1@4"},
			{store.Point{Time: epoch.Add(3 * time.Second)}, "3 a@2 b@3"}, {store.Point{Revision: 6}, "6 a1@4 c@6"},
		} {
			if got := names(test.at); got != test.want {
				t.Errorf("%s, at %s: %s, want %s", when, test.at, got, test.want)
			}
		}
	}
	clock.Step(time.Minute)
	check("before the compaction")
	if err := core.Compact(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	check("after a part was compacted")
	compactAll(t, core)
	check("after the compaction")
	refused := func(at store.Point) error {
		return pods.PastList(t.Context(), "/pods/ns/", at, storage.Everything, &example.PodList{})
	}
	var notKept *store.NotKeptError
	if err := refused(store.Point{Time: epoch.Add(-time.Second)}); !errors.As(err, &notKept) {
		t.Errorf("before the history: %v", err)
	}
	var future *store.FutureError
	if err := refused(store.Point{Revision: 9}); !errors.As(err, &future) {
		t.Errorf("the future: %v", err)
	}
}
