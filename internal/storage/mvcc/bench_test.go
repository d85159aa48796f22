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

	"github.com/annexapi/annex/internal/storage/mvcc"
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
