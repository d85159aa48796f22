package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// storeEnv is a directory that keeps stores from one process to the next: BenchmarkLoad fills it,
	// BenchmarkRestart and BenchmarkSelect read it.
	storeEnv = "ANNEX_BENCH_STORE"
	// objectsEnv is the number of objects in it.
	objectsEnv = "ANNEX_BENCH_OBJECTS"
)

// kept returns the directory of a kept store, and the number of objects for it. etcd's is the same with and without a
// watch cache.
func kept(b *testing.B, name string) (dir string, objects int) {
	dir = os.Getenv(storeEnv)
	objects, err := strconv.Atoi(os.Getenv(objectsEnv))
	if dir == "" || err != nil {
		b.Skipf("needs %s and %s, as the command sets them", storeEnv, objectsEnv)
	}
	if name == cachedBackend {
		name = etcdBackend
	}
	return filepath.Join(dir, name), objects
}

func forEachKept(b *testing.B, run func(b *testing.B, name, dir string, objects int)) {
	for _, name := range durable {
		dir, objects := kept(b, name)
		b.Run(fmt.Sprintf("objects=%d/backend=%s", objects, name), func(b *testing.B) { run(b, name, dir, objects) })
	}
}

// BenchmarkLoad creates objects of 1 KB from 64 writers and reports the memory and the disk space in use afterwards.
func BenchmarkLoad(b *testing.B) {
	forEachKept(b, func(b *testing.B, name, dir string, objects int) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		s, err := openSystem(b, name, dir)
		if err != nil {
			b.Fatal(err)
		}
		defer s.close(b)
		opened := s.pods(b, pods())
		m := s.measure(b)
		create(b, opened, 0, objects, 1<<10, 64, m.pause)
		m.done("write", objects)
		s.reportMemory(b)
		b.ReportMetric(sizeMB(b, dir), "disk-MB")
	})
}

func sizeMB(b *testing.B, dir string) float64 {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return float64(bytes) / (1 << 20)
}

// BenchmarkRestart opens a filled store, and reports the time from its start until the first object, the first page
// of 500, and the last of all pages have been read. With etcd, it is the start of etcd's server.
func BenchmarkRestart(b *testing.B) {
	forEachKept(b, func(b *testing.B, name, dir string, objects int) {
		start := time.Now()
		s, err := openSystem(b, name, dir)
		if err != nil {
			b.Fatal(err)
		}
		defer s.close(b)
		opened := s.pods(b, pods())
		pod := newPod(objects/2, 0)
		if err := opened.Get(b.Context(), key(pod.Namespace, pod.Name), storage.GetOptions{}, &example.Pod{}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "get-s")
		page := &example.PodList{}
		if err := opened.GetList(b.Context(), prefix+"/", everything(500), page); err != nil || len(page.Items) != 500 {
			b.Fatal(err, len(page.Items))
		}
		b.ReportMetric(time.Since(start).Seconds(), "page-s")
		s.reportMemory(b)
		list(b, opened, everything(10_000), objects)
		b.ReportMetric(time.Since(start).Seconds(), "list-s")
		b.ReportMetric(residentMB(b, "self", "VmRSS"), "listed-RSS-MB")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkSelect lists the objects with one of a hundred values of a label, with and without an index of it.
// Upstream's bare store has no indexes.
func BenchmarkSelect(b *testing.B) {
	forEachKept(b, func(b *testing.B, name, dir string, objects int) {
		s, err := openSystem(b, name, dir)
		if err != nil {
			b.Fatal(err)
		}
		defer s.close(b)
		for _, indexed := range []bool{false, true} {
			if indexed && name == etcdBackend {
				continue
			}
			b.Run(fmt.Sprintf("indexed=%v", indexed), func(b *testing.B) {
				resource := pods()
				if indexed {
					resource = indexedPods()
				}
				opened := s.pods(b, resource)
				opts := everything(0)
				if indexed {
					opts.Predicate.IndexLabels = []string{"group"}
				}
				selectGroup := func(i int) {
					opts.Predicate.Label = labels.SelectorFromSet(labels.Set{"group": fmt.Sprintf("group-%02d", i%groups)})
					list(b, opened, opts, objects/groups)
				}
				selectGroup(0) // decodes, and builds the index
				// Each without an index takes a second or more where objects are decoded.
				count := map[bool]int{false: 5, true: 1000}[indexed]
				if name == embeddedBackend && !indexed {
					count = 50
				}
				m := s.measure(b)
				for i := range count {
					selectGroup(i)
				}
				m.done("list", count)
			})
		}
	})
}
