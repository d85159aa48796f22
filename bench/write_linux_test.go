package main

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// BenchmarkCreate creates objects from a number of concurrent writers, each waiting until its object is durable. The
// response is decoded, as the API needs it.
func BenchmarkCreate(b *testing.B) { benchmarkCreate(b, runtime.ContentTypeJSON) }

// BenchmarkCreateProtobuf is BenchmarkCreate with the objects stored as protobuf, by every backend.
func BenchmarkCreateProtobuf(b *testing.B) { benchmarkCreate(b, runtime.ContentTypeProtobuf) }

func benchmarkCreate(b *testing.B, mediaType string) {
	forEach(b, append([]string{memoryBackend}, durable...), func(b *testing.B, s *system) {
		opened := s.pods(b, podsAs(mediaType))
		first := 0
		for _, kilobytes := range []int{1, 8} {
			for _, writers := range []int{1, 16, 64} {
				b.Run(fmt.Sprintf("size=%dKB/writers=%d", kilobytes, writers), func(b *testing.B) {
					count := scaled(map[int]int{1: 2_000, 16: 10_000, 64: 20_000}[writers]) / map[int]int{1: 1, 8: 2}[kilobytes]
					m := s.measure(b)
					create(b, opened, first, count, kilobytes<<10, writers, m.pause)
					m.done("write", count)
					first += count
				})
			}
		}
	})
}
