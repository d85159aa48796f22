package mvcc_test

import (
	"fmt"
	"os"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/embedded"
)

// BenchmarkKeptHistory keeps 1,000,000 revisions on disk, 10,000 of one object among them, and measures reading them, the
// space and the restart. Run it with -benchtime=1x; -short keeps a hundredth.
func BenchmarkKeptHistory(b *testing.B) {
	objects, updates, ofOne := 990, 1000, 10_000
	if testing.Short() {
		objects, updates, ofOne = 99, 100, 1100
	}
	dir := b.TempDir()
	ctx := request.WithUser(b.Context(), &user.DefaultInfo{Name: "anna@example.com"})
	opened := func(keep bool) (*mvcc.Core, *embedded.Journal, store.Historian, time.Duration) {
		began := time.Now()
		j, err := embedded.Open(dir, embedded.Options{})
		if err != nil {
			b.Fatal(err)
		}
		core, err := mvcc.Open(ctx, j, mvcc.Options{Idle: false, History: idleHistory})
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		retention := store.Retention{}
		if keep {
			retention = store.Retention{Age: 30 * 24 * time.Hour, Bytes: 1 << 40}
		}
		return core, j, keeping(b, core, retention), took
	}
	for b.Loop() {
		core, j, pods, _ := opened(true)
		write := func(name string, n int) {
			create(b, pods, name)
			for i := range n {
				if _, err := tryAnnotate(ctx, pods, name, fmt.Sprintf("revision %d", i)); err != nil {
					b.Error(err)
					return
				}
			}
		}
		began := time.Now()
		var writers sync.WaitGroup
		names := make(chan string)
		for range 64 {
			writers.Go(func() {
				for name := range names {
					write(name, updates)
				}
			})
		}
		writers.Go(func() { write("one", ofOne) })
		for i := range objects {
			names <- fmt.Sprintf("pod-%d", i)
			if i%100 == 99 {
				compactAll(b, core)
			}
		}
		close(names)
		writers.Wait()
		b.ReportMetric(time.Since(began).Seconds(), "s-to-write")
		began = time.Now()
		compactAll(b, core)
		b.ReportMetric(time.Since(began).Seconds(), "s-last-move")
		kept := core.Kept()[0]
		b.ReportMetric(float64(kept.Records), "revisions")
		goruntime.GC()
		var memory goruntime.MemStats
		goruntime.ReadMemStats(&memory)
		b.ReportMetric(float64(memory.HeapAlloc)/float64(kept.Records), "heap-B/rev")
		if err := j.Purge(ctx); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(j.DiskUsage())/float64(kept.Records), "disk-B/rev")
		ms := func(name string, n int, read func(i int)) {
			began := time.Now()
			for i := range n {
				read(i)
			}
			b.ReportMetric(time.Since(began).Seconds()*1000/float64(n), name)
		}
		middle := uint64(0)
		ms("ms/page", 20, func(int) {
			page, err := pods.History(ctx, key("one"), middle, 51)
			if err != nil || len(page.Revisions) != 51 {
				b.Fatalf("%d revisions, %v", len(page.Revisions), err)
			}
			middle = page.Revisions[50].Revision
		})
		ms("ms/at-revision", 100, func(i int) {
			if _, err := past(pods, "one", store.Point{Revision: core.Revision() / 100 * uint64(i+1)}); err != nil {
				b.Fatal(err)
			}
		})
		old := time.Since(began)
		ms("ms/at-time", 100, func(i int) {
			if _, err := past(pods, "one", store.Point{Time: time.Now().Add(-old * time.Duration(i) / 100)}); err != nil {
				b.Fatal(err)
			}
		})
		if err := core.Close(); err != nil {
			b.Fatal(err)
		}
		core, _, pods, took := opened(true)
		b.ReportMetric(took.Seconds()*1000, "ms-restart")
		if got := listed(b, pods, "one", 0, 1); got == "" {
			b.Error("no history after the restart")
		}
		if err := core.Close(); err != nil {
			b.Fatal(err)
		}
		_ = os.RemoveAll(dir)
	}
}
