package mvcc_test

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// cpuTime returns the processor time of the process.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// lap is the approximate number of updates that a writer may be ahead of a watcher.
const lap = 32

// BenchmarkWatchFanOut updates one object while every watcher encodes every event, as a connection does. One operation
// is one update that is delivered to all watchers.
func BenchmarkWatchFanOut(b *testing.B) {
	for _, watchers := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			_, pods := open(b, memory.New(), mvcc.Options{})
			codec := storetest.PodCodec()
			create(b, pods, "a")

			var watching sync.WaitGroup
			laps := make([]sync.WaitGroup, b.N/lap+1)
			for i := range laps {
				laps[i].Add(watchers)
			}
			for range watchers {
				w := watchFrom(b, pods, 2, storage.Everything)
				watching.Go(func() {
					defer w.Stop()
					for i := range b.N {
						event := <-w.ResultChan()
						if err := codec.Encode(event.Object, io.Discard); err != nil {
							b.Error(err)
						}
						if i%lap == lap-1 {
							laps[i/lap].Done()
						}
					}
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
			for i := range b.N {
				annotate(b, pods, "a", fmt.Sprint(i))
				// Without a limit, the benchmark would measure how watchers catch up.
				if i%lap == 0 && i >= 2*lap {
					laps[i/lap-2].Wait()
				}
			}
			watching.Wait()
			used := cpuTime(b) - before
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N)/float64(watchers), "cpu-ns/event")
		})
	}
}

// BenchmarkCreate creates objects from several concurrent writers.
func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			_, pods := open(b, memory.New(), mvcc.Options{})
			var next atomic.Int64
			var writing sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuTime(b)
			for range writers {
				writing.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						create(b, pods, fmt.Sprint(i))
					}
				})
			}
			writing.Wait()
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkList lists 10,000 objects that are already decoded.
func BenchmarkList(b *testing.B) {
	_, pods := open(b, memory.New(), mvcc.Options{})
	for i := range 10_000 {
		create(b, pods, fmt.Sprint(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		list := &example.PodList{}
		if err := pods.GetList(b.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSelect lists one percent of 10,000 objects, by a declared index or by that of an undeclared label. With
// writes, each list must bring the index up to date with ten events.
func BenchmarkSelect(b *testing.B) {
	for _, resource := range []struct {
		name string
		store.Resource
	}{{"declared", indexedPods()}, {"undeclared", storetest.Pods("/pods")}} {
		core, _ := open(b, memory.New(), mvcc.Options{})
		pods := openAs(b, core, resource.Resource)
		colored(b, pods, 10_000, 100)
		for _, writes := range []int{0, 10} {
			b.Run(fmt.Sprintf("index=%s/writes=%d", resource.name, writes), func(b *testing.B) {
				predicate, written := selecting(b, "color=color-7"), 0
				for range 2 { // the second one builds the index of the undeclared label
					if _, err := listAt(pods, 0, predicate); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					for range writes {
						written++
						annotate(b, pods, fmt.Sprintf("pod-%04d", written%10_000), fmt.Sprint(written))
					}
					if list, err := listAt(pods, 0, predicate); err != nil || len(list.Items) != 100 {
						b.Fatalf("%d objects: %v", len(list.Items), err)
					}
				}
			})
		}
	}
}

// BenchmarkQuery reads pages of 20 of 10,000 objects by their color.
func BenchmarkQuery(b *testing.B) {
	_, pods := open(b, memory.New(), mvcc.Options{})
	colored(b, pods, 10_000, 100)
	where := []ordered.Condition{{Field: byName, Set: ordered.Union(ordered.From(ordered.Encode("pod-9000")))}}
	for _, query := range []struct {
		name string
		ordered.Query
	}{
		{"first", ordered.Query{By: byColor, Limit: 20}},
		{"offset", ordered.Query{By: byColor, Limit: 20, Offset: 7000, Namespaces: []string{"ns", "other"}}},
		{"condition", ordered.Query{By: byColor, Limit: 20, Where: where}},
	} {
		b.Run("page="+query.name, func(b *testing.B) {
			read := func() {
				if page, err := pods.(ordered.Querier).Query(b.Context(), "/pods/", &query.Query); err != nil || len(page.Objects) != 20 {
					b.Fatal(page, err)
				}
			}
			read() // builds the order
			b.ReportAllocs()
			for b.Loop() {
				read()
			}
		})
	}
}

// BenchmarkIndex builds the declared indexes of 10,000 decoded objects.
func BenchmarkIndex(b *testing.B) {
	clock := newClock()
	core, _ := open(b, memory.New(), mvcc.Options{Clock: clock, Idle: true})
	pods := openAs(b, core, indexedPods())
	colored(b, pods, 10_000, 100)
	predicate := selecting(b, "color=none")
	build := func() {
		if _, err := listAt(pods, 0, predicate); err != nil {
			b.Fatal(err)
		}
		clock.Step(time.Hour)
		if err := core.CompactHistory(b.Context()); err != nil { // drops the indexes
			b.Fatal(err)
		}
	}
	build() // compacts the creations, too
	b.ReportAllocs()
	for b.Loop() {
		build()
	}
}

// BenchmarkGet reads one object of 10,000.
func BenchmarkGet(b *testing.B) {
	_, pods := open(b, memory.New(), mvcc.Options{})
	for i := range 10_000 {
		create(b, pods, fmt.Sprint(i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := pods.Get(b.Context(), "/pods/ns/777", storage.GetOptions{}, &example.Pod{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen replays a journal of 100,000 objects of about 1 KB.
func BenchmarkOpen(b *testing.B) {
	const objects = 100_000
	j := newLedger()
	for revision := uint64(2); revision < objects+2; revision++ {
		// The keys are out of order, like names with a random part.
		name := fmt.Sprintf("object-%06d", revision*7919%objects)
		j.records[revision] = journal.Record{Revision: revision, Key: key(name), Value: make([]byte, 1000), Committed: epoch}
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		again := j.reopen()
		b.StartTimer()
		core, err := mvcc.Open(b.Context(), again, mvcc.Options{})
		if err != nil {
			b.Fatal(err)
		}
		openPods(b, core)
		b.StopTimer()
		_ = core.Close()
		b.StartTimer()
	}
}
