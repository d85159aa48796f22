package embedded_test

import (
	"context"
	"fmt"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// BenchmarkAppend measures durable appends of 1 KB on the disk of the test's directory.
func BenchmarkAppend(b *testing.B) {
	value := bigRecord(1).Value
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j := mustOpen(b, b.TempDir(), embedded.Options{})
			var mu sync.Mutex
			var last uint64
			appendNext := func() (func() error, error) {
				mu.Lock()
				defer mu.Unlock()
				last++
				return j.Append(journal.Record{Revision: last, Key: "/things/default/thing", Value: value})
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.SetBytes(int64(len(value)))
			b.ResetTimer()
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					for left.Add(-1) >= 0 {
						wait, err := appendNext()
						if err == nil {
							err = wait()
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkOpenAndReplay measures a restart with 100,000 records of 1 KB.
func BenchmarkOpenAndReplay(b *testing.B) {
	const records = 100_000
	for _, kept := range []bool{true, false} {
		b.Run(fmt.Sprintf("kept=%v", kept), func(b *testing.B) {
			dir := b.TempDir()
			j := mustOpen(b, dir, embedded.Options{})
			var wait func() error
			for revision := uint64(1); revision <= records; revision++ {
				var err error
				if wait, err = j.Append(bigRecord(revision)); err != nil {
					b.Fatal(err)
				}
				if revision%1000 == 0 {
					if err := wait(); err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				j, err := embedded.Open(dir, embedded.Options{})
				if err != nil {
					b.Fatal(err)
				}
				held := make([]journal.Record, 0, records)
				if _, err := j.Replay(context.Background(), func(r journal.Record) error {
					if kept {
						held = append(held, r)
					}
					return nil
				}); err != nil {
					b.Fatal(err)
				}
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkOpenCore measures the time until the store of a server with 100,000 objects of 1 KB is ready, and the
// first list of them all after that.
func BenchmarkOpenCore(b *testing.B) {
	const objects = 100_000
	for _, listed := range []bool{true, false} {
		b.Run(fmt.Sprintf("listed=%v", listed), func(b *testing.B) {
			dir := b.TempDir()
			j := mustOpen(b, dir, embedded.Options{})
			resource := storetest.Pods("/pods")
			var wait func() error
			for i := range uint64(objects) {
				name := fmt.Sprintf("pod-%d", i)
				value, err := runtime.Encode(resource.Codec, &example.Pod{ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: name, Annotations: map[string]string{"padding": strings.Repeat("x", 700)},
				}})
				if err != nil {
					b.Fatal(err)
				}
				if wait, err = j.Append(journal.Record{Revision: i + 2, Key: "/pods/default/" + name, Value: value}); err != nil {
					b.Fatal(err)
				}
			}
			if err := wait(); err != nil {
				b.Fatal(err)
			}
			if err := j.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				j, err := embedded.Open(dir, embedded.Options{})
				if err != nil {
					b.Fatal(err)
				}
				core, err := mvcc.Open(b.Context(), j, mvcc.Options{})
				if err != nil {
					b.Fatal(err)
				}
				pods, err := core.Open(resource)
				if err != nil {
					b.Fatal(err)
				}
				if listed {
					list := &example.PodList{}
					if err := pods.GetList(
						b.Context(),
						"/pods/",
						storage.ListOptions{Recursive: true, Predicate: storage.Everything},
						list,
					); err != nil ||
						len(list.Items) != objects {
						b.Fatal(err, len(list.Items))
					}
				}
				if err := core.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkChurn measures the memory in use after 16 writers have created, updated and deleted 50,000 objects of 2
// KB. No object is left. Run it with -benchtime 1x.
func BenchmarkChurn(b *testing.B) {
	const objects, writers = 50_000, 16
	for b.Loop() {
		core, err := mvcc.Open(b.Context(), mustOpen(b, b.TempDir(), embedded.Options{}), mvcc.Options{})
		if err != nil {
			b.Fatal(err)
		}
		pods, err := core.Open(storetest.Pods("/pods"))
		if err != nil {
			b.Fatal(err)
		}
		var next atomic.Int64
		var group sync.WaitGroup
		for range writers {
			group.Go(func() {
				for i := next.Add(1); i <= objects; i = next.Add(1) {
					name := fmt.Sprintf("pod-%d", i)
					pod := &example.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{"padding": strings.Repeat("x", 2000)}},
					}
					err := pods.Create(context.Background(), "/pods/ns/"+name, pod, &example.Pod{}, 0)
					if err == nil {
						err = pods.GuaranteedUpdate(
							context.Background(),
							"/pods/ns/"+name,
							&example.Pod{},
							false,
							nil,
							storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
								object.(*example.Pod).Spec.NodeName = "node"
								return object, nil
							}),
							nil,
						)
					}
					if err == nil {
						err = pods.Delete(
							context.Background(),
							"/pods/ns/"+name,
							&example.Pod{},
							nil,
							storage.ValidateAllObjectFunc,
							nil,
							storage.DeleteOptions{},
						)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		goruntime.GC()
		goruntime.GC() // pools release their memory only now
		var stats goruntime.MemStats
		goruntime.ReadMemStats(&stats)
		b.ReportMetric(float64(stats.HeapAlloc)/(1<<20), "live-MiB")
		if err := core.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
