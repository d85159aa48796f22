package stream_test

import (
	"context"
	"io"
	"runtime"
	"testing"

	"k8s.io/client-go/rest"
)

// BenchmarkSessions prints what 200 sessions at a time need, with their clients, which are in the
// same process.
func BenchmarkSessions(b *testing.B) {
	const sessions = 200
	for _, d := range dialects()[:3] {
		b.Run(d.name, func(b *testing.B) {
			for b.Loop() {
				toy := newToy()
				config := startWidgets(b, widgets(execs(toy)))
				before := inUse()
				ctx, cancel := context.WithCancel(b.Context())
				done := make(chan error, sessions)
				for range sessions {
					go func() {
						config := rest.CopyConfig(config)
						done <- d.stream(b, ctx, config, command{words: []string{"wait"}}, io.Discard, io.Discard)
					}()
				}
				for range sessions {
					toy.begun(b)
				}
				b.ReportMetric(float64(inUse()-before)/sessions/1024, "KiB/session")
				cancel()
				for range sessions {
					<-done
					if _, err := toy.over(b); err == nil {
						b.Error("a session ended without a reason")
					}
				}
			}
		})
	}
}

// inUse is what the process holds in its heap and stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
