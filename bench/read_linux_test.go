package main

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// BenchmarkRead gets single objects of 10,000, and lists them all.
func BenchmarkRead(b *testing.B) {
	const objects = 10_000
	forEach(b, durable, func(b *testing.B, s *system) {
		opened := s.pods(b, pods())
		load(b, opened, objects, 1<<10)
		list(b, opened, everything(0), objects)

		b.Run("get", func(b *testing.B) {
			keys := make([]string, 1000)
			for i := range keys {
				pod := newPod(i*objects/len(keys), 0)
				keys[i] = key(pod.Namespace, pod.Name)
			}
			count := scaled(20_000)
			m := s.measure(b)
			for i := range count {
				if err := opened.Get(b.Context(), keys[i%len(keys)], storage.GetOptions{}, &example.Pod{}); err != nil {
					b.Fatal(err)
				}
			}
			m.done("get", count)
		})
		b.Run("list=10k", func(b *testing.B) {
			count := scaled(20)
			m := s.measure(b)
			for range count {
				list(b, opened, everything(0), objects)
			}
			m.done("list", count)
		})
	})
}

// everything returns the options of a consistent list, in pages of limit if that is not 0.
func everything(limit int64) storage.ListOptions {
	predicate := storage.Everything
	predicate.GetAttrs, predicate.Limit = attributes, limit
	return storage.ListOptions{Recursive: true, Predicate: predicate}
}

// list reads all pages of a list and checks the number of objects.
func list(b *testing.B, s storage.Interface, opts storage.ListOptions, want int) {
	b.Helper()
	found := 0
	for {
		page := &example.PodList{}
		if err := s.GetList(b.Context(), prefix+"/", opts, page); err != nil {
			b.Fatal(err)
		}
		found += len(page.Items)
		if opts.Predicate.Continue = page.Continue; page.Continue == "" {
			break
		}
		opts.ResourceVersion, opts.ResourceVersionMatch = "", metav1.ResourceVersionMatch("")
	}
	if found != want {
		b.Fatalf("listed %d objects, want %d", found, want)
	}
}
