package stream_test

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/stream"
)

// BenchmarkSessions prints the memory of 200 concurrent sessions and their clients, which run in the same process.
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

// The server does not buffer output that the client does not read: the command waits, and the session costs hardly
// more than an idle one.
func TestExec_clientDoesNotRead_isBounded(t *testing.T) { // alone: it measures memory
	const clients = 50
	type flood struct {
		begun, written atomic.Int64
		begin          chan struct{}
	}
	var now atomic.Pointer[flood]
	config := startWidgets(t, widgets(stream.Exec("exec", func(_ context.Context, _ *stream.ExecRequest[v1.Widget], s stream.Streams) error {
		f := now.Load()
		f.begun.Add(1)
		<-f.begin
		text := bytes.Repeat([]byte("what a command writes faster than it is read\n"), 200)
		for {
			n, err := s.Stdout.Write(text)
			f.written.Add(int64(n))
			if err != nil {
				return err
			}
		}
	})))
	for _, d := range dialects()[:3] {
		t.Run(d.name, func(t *testing.T) {
			f := &flood{begin: make(chan struct{})}
			now.Store(f)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var running sync.WaitGroup
			var stuck atomic.Int64
			for range clients {
				running.Go(func() {
					_ = d.stream(t, ctx, config, command{words: []string{"write"}}, stuckWriter{ctx, &stuck}, io.Discard)
				})
			}
			testwait.Until(t, "the commands begin", func() bool { return f.begun.Load() == clients })
			before := inUse()
			close(f.begin)
			var written int64
			testwait.Until(t, "the commands wait", func() bool {
				last := written
				written = f.written.Load()
				return stuck.Load() == clients && written == last
			})
			each := (inUse() - before) / clients
			t.Logf("%s: %d clients that do not read cost %d KiB each, their own side included, more than clients of silent commands; %d KiB "+
				"have been written for each", d.name, clients, each>>10, written/clients>>10)
			if each > costs<<20 {
				t.Errorf("each costs %d KiB", each>>10)
			}
			cancel()
			running.Wait()
			nothingIsLeft(t)
		})
	}
}

// stuckWriter writes nothing until its context ends. It counts the writers that wait.
type stuckWriter struct {
	ctx   context.Context
	stuck *atomic.Int64
}

func (w stuckWriter) Write([]byte) (int, error) {
	w.stuck.Add(1)
	<-w.ctx.Done()
	return 0, w.ctx.Err()
}

// inUse returns the bytes in use in the heap and the stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
