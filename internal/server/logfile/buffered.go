package logfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/annexapi/annex/internal/base/await"
)

const (
	// flushInterval is how old a line is at most when it is written.
	flushInterval = time.Second
	// flushBytes are written at once without waiting for that.
	flushBytes = 64 << 10
	// maxBuffered is what waits for a slow disk at most.
	maxBuffered = 4 << 20
)

var (
	errBehind  = errors.New("the file is too slow")
	errStopped = errors.New("the server has stopped")
)

// Buffered gathers lines in memory, and writes them in the background: who writes a line never
// waits for a disk. It may be used concurrently.
type Buffered struct {
	to     io.Writer
	losses *Losses

	mu      sync.Mutex
	pending []byte
	stopped bool
	full    chan struct{}
}

// NewBuffered writes to a writer of whole lines, and counts those that are lost.
func NewBuffered(to io.Writer, losses *Losses) *Buffered {
	return &Buffered{to: to, losses: losses, full: make(chan struct{}, 1)}
}

// Write takes whole lines. It never fails: what is lost is counted.
func (b *Buffered) Write(lines []byte) (int, error) {
	if err := b.add(lines); err != nil {
		b.losses.Add(bytes.Count(lines, []byte("\n")), err)
	}
	return len(lines), nil
}

func (b *Buffered) add(lines []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stopped:
		return errStopped
	case len(b.pending)+len(lines) > maxBuffered:
		return errBehind
	}
	if b.pending = append(b.pending, lines...); len(b.pending) >= flushBytes {
		await.Notify(b.full)
	}
	return nil
}

// Run writes what is gathered until ctx is done, and then what is left.
func (b *Buffered) Run(ctx context.Context) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	var spare []byte
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case <-tick.C:
		case <-b.full:
		}
		b.mu.Lock()
		lines := b.pending
		b.pending, b.stopped = spare[:0], !running
		b.mu.Unlock()
		b.flush(lines)
		if spare = lines; cap(spare) > 4*flushBytes {
			spare = nil // of a burst
		}
	}
}

func (b *Buffered) flush(lines []byte) {
	if len(lines) == 0 {
		return
	}
	if _, err := b.to.Write(lines); err != nil {
		b.losses.Add(bytes.Count(lines, []byte("\n")), err)
	}
}
