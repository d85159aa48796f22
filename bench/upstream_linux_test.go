package main

import (
	"testing"

	suite "k8s.io/apiserver/pkg/storage/testing"
)

// upstreamPods is the number of pods for upstream's benchmarks here; upstream's own runs use 150,000.
const upstreamPods = 5_000

// The benchmarks of upstream's package k8s.io/apiserver/pkg/storage/testing, on nodes and namespaces that are indexed
// where the backend has indexes.

func BenchmarkUpstreamWriteThroughput(b *testing.B) {
	forEach(b, durable, func(b *testing.B, s *system) {
		suite.RunBenchmarkWriteThroughput(b.Context(), b, s.pods(b, indexedPods()), upstreamData(), true, nil)
	})
}

func BenchmarkUpstreamStoreList(b *testing.B) {
	forEach(b, durable, func(b *testing.B, s *system) {
		opened, data := s.pods(b, indexedPods()), upstreamData()
		if err := suite.PrecreateBenchmarkPods(b.Context(), opened, data); err != nil {
			b.Fatal(err)
		}
		suite.RunBenchmarkStoreList(b.Context(), b, opened, data, true)
	})
}

func BenchmarkUpstreamStoreStats(b *testing.B) {
	forEach(b, durable, func(b *testing.B, s *system) {
		opened := s.pods(b, indexedPods())
		if err := suite.PrecreateBenchmarkPods(b.Context(), opened, upstreamData()); err != nil {
			b.Fatal(err)
		}
		suite.RunBenchmarkStoreStats(b.Context(), b, opened)
	})
}

func upstreamData() suite.BenchmarkData {
	count := scaled(upstreamPods)
	return suite.PrepareBenchmarkData(50, count/50, count/50)
}
