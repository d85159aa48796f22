package logfile

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a writer that waits for a value from goOn and returns it as its error.
type slow struct {
	goOn chan error // nil does not wait
	mu   sync.Mutex
	got  strings.Builder
}

func (s *slow) Write(p []byte) (int, error) {
	if s.goOn != nil {
		if err := <-s.goOn; err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

func (s *slow) text() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func running(t *testing.T, b *Buffered) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	return func() { cancel(); <-done }
}

func add(t *testing.T, b *Buffered, lines string) {
	t.Helper()
	if n, err := b.Write([]byte(lines)); n != len(lines) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestBuffered_flushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, losses := &slow{}, NewLosses("Lines")
		b := NewBuffered(to, losses)
		end := running(t, b)
		add(t, b, "one\n")
		add(t, b, "two\n")
		if got := to.text(); got != "" {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(flushInterval)
		if got := to.text(); got != "one\ntwo\n" {
			t.Errorf("a second later: %q", got)
		}
		many := strings.Repeat("a line\n", flushBytes/7+1)
		add(t, b, many)
		if got := to.text(); got != "one\ntwo\n"+many {
			t.Errorf("many lines were not written at once: %d bytes", len(got))
		}
		add(t, b, "three\n")
		end()
		if got := to.text(); got != "one\ntwo\n"+many+"three\n" || losses.Total() != 0 {
			t.Errorf("in the end: %d bytes, %d lost", len(got), losses.Total())
		}
		add(t, b, "four\nfive\n")
		if losses.Total() != 2 {
			t.Errorf("%d lines are lost after the end", losses.Total())
		}
	})
}

func TestBuffered_hangingWriter_blocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, losses := &slow{goOn: make(chan error)}, NewLosses("Lines")
		b := NewBuffered(to, losses)
		end := running(t, b)
		add(t, b, "first\n")
		time.Sleep(flushInterval)
		synctest.Wait() // the writer hangs now
		line := strings.Repeat("x", 1023) + "\n"
		const lines = 2 * maxBuffered / 1024
		for range lines {
			add(t, b, line)
		}
		if got := losses.Total(); got != lines/2 {
			t.Errorf("%d of %d lines are lost", got, lines)
		}
		to.goOn <- errors.New("it failed")
		to.goOn <- nil
		if got, want := to.text(), strings.Repeat(line, lines/2); got != want || losses.Total() != lines/2+1 {
			t.Errorf("%d bytes were written, want %d; %d lines are lost", len(got), len(want), losses.Total())
		}
		end()
	})
}
