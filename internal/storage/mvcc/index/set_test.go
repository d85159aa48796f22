package index_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestPlan_afterChanges_readsChangedObjects(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.want("the first list", "color=1", "pod-01 pod-06", 10)
	e.want("a list without changes", "color=1", "pod-01 pod-06", 0)
	e.want("several values", "color in (1,2,none)", "pod-01 pod-02 pod-06 pod-07", 0)
	e.source.put("ns/pod-03", "color=1")
	e.source.put("ns/pod-01", "color=2")
	e.source.put("ns/pod-01", "color=3")
	e.source.remove("ns/pod-06")
	e.want("after four changes of three pods", "color=1", "pod-03", 2)
	e.want("the new color", "color=3", "pod-01 pod-08", 0)
	e.source.put("ns/pod-03")
	e.want("a pod without the label", "color=1", "", 1)
}

func TestPlan_trimmedEvents_rebuilds(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.want("the first list", "color=1", "pod-01 pod-06", 10)
	e.source.trim()
	e.want("trimmed events that the indexes have seen", "color=1", "pod-01 pod-06", 0)
	e.source.put("ns/pod-01", "color=2")
	e.source.remove("ns/pod-00")
	e.source.trim()
	e.source.put("ns/pod-11", "color=1")
	e.want("trimmed events that they have not seen", "color=1", "pod-06 pod-11", 10)
	e.want("a pod of a trimmed deletion", "color=0", "pod-05", 0)
}

func TestPlan_unreadableValues_areReportedAndReadAgain(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.source.setUnreadable("ns/pod-01", true)
	e.source.setUnreadable("ns/pod-02", true)
	e.resetReads()
	best := e.plan("color=1")
	if best == nil || len(best.Unreadable()) != 2 {
		t.Fatalf("the result is %v, want one with two unreadable keys", best)
	}
	e.wantReads("the first list", 10)
	e.resetReads()
	_ = e.find("color=1")
	e.wantReads("while the first of them is unreadable", 1)
	e.source.setUnreadable("ns/pod-02", false)
	for range 100 { // the first of the two is random
		if e.find("color=1") == "pod-06 unreadable pod-01" {
			break
		}
	}
	e.want("when one can be read", "color=1", "pod-06 unreadable pod-01", 1)
	e.want("its color", "color=2", "pod-02 pod-07 unreadable pod-01", 1)
	e.source.put("ns/pod-01", "color=4")
	e.want("another version of it that cannot be read", "color=1", "pod-06 unreadable pod-01", 2)
	e.source.remove("ns/pod-01")
	e.want("when the other one is gone", "color=1", "pod-06", 0)
	e.want("a list after that", "color=1", "pod-06", 0)
}

func TestPlan_panicOfIndexer_isUnreadable(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(5)
	e.source.setOnRead(func() { panic("a mistake of the developer") })
	if best := e.plan("color=1"); best == nil || len(best.Unreadable()) != 5 {
		t.Errorf("the result is %v, want one with five unreadable keys", best)
	}
	e.source.setOnRead(nil)
	e.want("without the panic", "color=1", "pod-01", 5)
}

func TestPlan_slowBuildOfSlowObjects_scansForAWhile(t *testing.T) {
	e := newEnv(t, options{slowObjects: true})
	e.putColors(10)
	e.source.setOnRead(func() { e.clock.Step(time.Second) })
	e.want("a build that takes too long", "color=1", scan, 6)
	e.source.setOnRead(nil)
	e.want("a list after it", "color=1", scan, 0)
	e.clock.Step(time.Minute - 7*time.Second)
	e.want("just before the next build", "color=1", scan, 0)
	e.clock.Step(7 * time.Second)
	e.want("the next build", "color=1", "pod-01 pod-06", 10)
}

// A scan would decode the same objects.
func TestPlan_slowBuild_isWaitedFor(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.source.setOnRead(func() { e.clock.Step(time.Minute) })
	e.want("a build", "color=1", "pod-01 pod-06", 10)

	e.putColors(7)
	e.source.setOnRead(func() { e.clock.Step(time.Second) })
	e.want("an update that takes too long leaves the indexes as they were", "color=1", "pod-01 pod-06", 6)
	e.source.put("ns/pod-01", "color=2")
	e.source.setOnRead(nil)
	e.want("an update in time", "color=1", "pod-06", 7)
}

// A list waits for another one that builds the indexes, instead of decoding the same objects beside it.
func TestPlan_anotherListBuilds_waits(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(5)
	reading, proceed := make(chan struct{}), make(chan struct{})
	e.source.setOnRead(sync.OnceFunc(func() { close(reading); <-proceed }))
	found := make(chan string, 2)
	go func() { found <- e.find("color=1") }()
	<-reading
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.indexes.Plan(ctx, "/pods/", e.predicate("color=1")); !errors.Is(err, context.Canceled) {
		t.Errorf("a list whose context has ended gets %v, want the error of the context", err)
	}
	go func() { found <- e.find("color=1") }()
	e.clock.Step(time.Minute)
	close(proceed)
	for range 2 {
		if got := <-found; got != "pod-01" {
			t.Errorf("a list finds %q, want pod-01", got)
		}
	}
}

// A list waits five seconds for another list that builds the indexes of slow objects, and reads the last state while
// another one brings them up to date.
func TestPlan_anotherListBuildsOfSlowObjects_waitsForALimitedTime(t *testing.T) {
	e := newEnv(t, options{slowObjects: true})
	e.putColors(5)
	reading, proceed := make(chan struct{}), make(chan struct{})
	block := func() { e.source.setOnRead(sync.OnceFunc(func() { close(reading); <-proceed })) }
	var lists sync.WaitGroup
	block()
	lists.Go(func() { e.find("color=1") })
	<-reading
	waiting := make(chan string)
	lists.Go(func() { waiting <- e.find("color=1") })
	testwait.Until(t, "both lists have timers", func() bool { return e.clock.Waiters() == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.indexes.Plan(ctx, "/pods/", e.predicate("color=1")); !errors.Is(err, context.Canceled) {
		t.Errorf("a list whose context has ended gets %v, want the error of the context", err)
	}
	e.clock.Step(5 * time.Second)
	select {
	case found := <-waiting:
		if found != scan {
			t.Errorf("a list that waits for a build finds %q, want a scan", found)
		}
	case <-time.After(testwait.Patience):
		t.Fatal("a list still waits for a build")
	}
	close(proceed)
	lists.Wait()
	e.want("a list after the build", "color=1", "pod-01", 0)

	e.source.put("ns/pod-02", "color=1")
	reading, proceed = make(chan struct{}), make(chan struct{})
	block()
	lists.Go(func() { e.find("color=1") })
	<-reading
	if found := e.find("color=1"); found != "pod-01" {
		t.Errorf("a list during an update finds %q, want the last state", found)
	}
	close(proceed)
	lists.Wait()
	e.want("a list after the update", "color=1", "pod-01 pod-02", 0)
}

func TestPlan_contextEndsDuringBuild_returnsItsError(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(5)
	ctx, cancel := context.WithCancel(t.Context())
	e.source.setOnRead(cancel)
	if _, err := e.indexes.Plan(ctx, "/pods/", e.predicate("color=1")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
	e.source.setOnRead(nil)
	e.want("a list after it", "color=1", "pod-01", 5)
}

func TestMaintenance_beforeTrim_updates(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("before the first list", 0)
	e.want("the first list", "color=1", "pod-01 pod-06", 10)
	e.source.put("ns/pod-01", "color=2")
	e.resetReads()
	e.maintenance.BeforeTrim(t.Context(), e.source.revision-1)
	e.wantReads("events that the indexes have seen", 0)
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("an event that they have not seen", 1)
	e.source.trim()
	e.want("a list after it", "color=1", "pod-06", 0)
	e.indexes.Close()
	e.source.put("ns/pod-01", "color=1")
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("a closed resource", 0)
	e.want("a list of a closed resource", "color=1", "pod-01 pod-06", 1)
}

func TestMaintenance_beforeTrim_readsNoSlowObjects(t *testing.T) {
	e := newEnv(t, options{slowObjects: true})
	e.putColors(10)
	e.want("the first list", "color=1", "pod-01 pod-06", 10)
	e.resetReads()
	e.source.revision++ // of another resource
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.source.trim()
	e.wantReads("no event", 0)
	e.want("a list after it", "color=1", "pod-01 pod-06", 0)

	e.source.put("ns/pod-01", "color=2")
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("an event", 0)
	e.want("a list of dropped indexes", "color=1", "pod-06", 10)

	// Events may be trimmed although the indexes have not seen them: a list held the token meanwhile.
	e.source.put("ns/pod-01", "color=1")
	e.source.trim()
	e.source.revision++
	e.resetReads()
	e.maintenance.BeforeTrim(t.Context(), e.source.revision)
	e.wantReads("a trimmed event", 0)
	e.want("a list after it", "color=1", "pod-01 pod-06", 10)
}

func TestMaintenance_beforeTrim_waitsForUpdatesOfFastObjectsOnly(t *testing.T) {
	for _, slow := range []bool{false, true} {
		e := newEnv(t, options{slowObjects: slow})
		e.putColors(5)
		_ = e.find("color=1")
		e.source.put("ns/pod-02", "color=1")
		reading, proceed := make(chan struct{}), make(chan struct{})
		e.source.setOnRead(sync.OnceFunc(func() { close(reading); <-proceed }))
		var list sync.WaitGroup
		list.Go(func() { e.find("color=1") })
		<-reading
		trimming := make(chan struct{})
		go func() {
			defer close(trimming)
			e.maintenance.BeforeTrim(t.Context(), e.source.revision)
		}()
		if !slow {
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			e.maintenance.BeforeTrim(canceled, e.source.revision)
			close(proceed)
		}
		select {
		case <-trimming:
		case <-time.After(testwait.Patience):
			t.Errorf("slow objects %v: the maintenance still waits", slow)
		}
		if slow {
			close(proceed)
		}
		list.Wait()
	}
}

func TestMaintenance_dropUnused_keepsIndexesInUse(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(5)
	e.want("the first list", "color=1", "pod-01", 5)
	e.clock.Step(9 * time.Minute)
	e.maintenance.DropUnused()
	e.want("a list in time", "color=1", "pod-01", 0)
	e.clock.Step(9 * time.Minute)
	e.maintenance.DropUnused()
	e.want("another list in time", "color=1", "pod-01", 0)
	e.clock.Step(10 * time.Minute)
	e.maintenance.DropUnused()
	e.want("a list after ten minutes", "color=1", "pod-01", 5)
}

func TestPlan_noUsablePredicate_hasNoResult(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(5)
	e.want("a negation", "color!=1", scan, 0)
	e.want("existence", "!color", scan, 0)
	plan, err := e.indexes.Plan(t.Context(), "/pods/", storage.Everything)
	if best, _ := plan.Best(1000); best != nil || err != nil {
		t.Errorf("a list of all objects has the result %v: %v", best, err)
	}
	none := index.New(index.Config[*podVersion]{Source: e.source, LabelObjects: 1000, Maintenance: e.maintenance, Clock: e.clock})
	if plan, err := none.Plan(t.Context(), "/pods/", e.predicate("color=1")); len(plan) != 0 || err != nil {
		t.Errorf("a resource without indexes has the plan %v: %v", plan, err)
	}
	if lookups := none.Lookups(e.predicate("color=1")); lookups != nil {
		t.Errorf("a resource without indexes has the lookups %v", lookups)
	}
}
