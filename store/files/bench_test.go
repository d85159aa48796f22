package files_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

func podOf(i uint64) journal.Record {
	return journal.Record{
		Revision:  i + 2,
		Key:       fmt.Sprintf("/pods/ns%d/pod-%d", i%10, i),
		Committed: time.Now().UTC(),
		Value: fmt.Appendf(
			nil,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"pod-%d","namespace":"ns%d",`+
				`"uid":"u","annotations":{"padding":"%s"}},"spec":{},"status":{}}`,
			i,
			i%10,
			strings.Repeat("x", 850),
		),
	}
}

// BenchmarkCreate measures durable creates of objects of 1 KB, with their files, on the disk of the test's directory.
func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			j, err := openFollowed(b, b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			if _, err := j.Replay(b.Context(), func(journal.Record) error { return nil }); err != nil {
				b.Fatal(err)
			}
			var mu sync.Mutex
			var next uint64
			create := func() (func() error, error) {
				mu.Lock()
				defer mu.Unlock()
				record := podOf(next)
				next++
				return j.Append(record)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					for left.Add(-1) >= 0 {
						wait, err := create()
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
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "objects/s")
		})
	}
}

// BenchmarkOpen measures a restart with 10,000 objects of 1 KB: until the store can be read, and until all object
// files have been looked at.
func BenchmarkOpen(b *testing.B) {
	const objects = 10_000
	dir := b.TempDir()
	f := follow(b, must(files.Open(dir, files.Options{Resources: layout})))
	if _, err := f.Replay(b.Context(), func(journal.Record) error { return nil }); err != nil {
		b.Fatal(err)
	}
	var wait func() error
	var waits []func() error
	for i := range uint64(objects) {
		var err error
		if wait, err = f.Append(podOf(i)); err != nil {
			b.Fatal(err)
		}
		waits = append(waits, wait)
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			b.Fatal(err)
		}
	}
	testwait.Until(b, "writing all files", func() bool { return len(contentOf(b, podFile(dir, "ns9", "pod-9999"))) > 0 })
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	for _, observed := range []bool{false, true} {
		b.Run(fmt.Sprintf("observed=%v", observed), func(b *testing.B) {
			for b.Loop() {
				j := must(files.Open(dir, files.Options{Resources: layout}))
				opened := follow(b, j)
				replay := opened.Replay
				if !observed {
					replay = j.Replay
				}
				if _, err := replay(b.Context(), func(journal.Record) error { return nil }); err != nil {
					b.Fatal(err)
				}
				if observed {
					<-j.Observed()
				}
				if err := opened.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(objects*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
		})
	}
}

func must(j *files.Journal, err error) *files.Journal {
	if err != nil {
		panic(err)
	}
	return j
}
