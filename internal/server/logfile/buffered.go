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
	// flushInterval is the maximum time before a line is written.
	flushInterval = time.Second
	// flushBytes is the number of buffered bytes that are written without waiting for flushInterval.
	flushBytes = 64 << 10
	// maxBuffered is the maximum number of bytes that wait for a slow disk.
	maxBuffered = 4 << 20
)

var (
	errBehind  = errors.New("the file is too slow")
	errStopped = errors.New("the server has stopped")
)

// Buffered collects lines in memory and writes them in the background, so that a writer of lines never waits for a
// disk. It may be used concurrently.
type Buffered struct {
	to     io.Writer
	losses *Losses

	mu      sync.Mutex
	pending []byte
	stopped bool
	full    chan struct{}
}

// NewBuffered returns a Buffered in front of a writer of whole lines. Lost lines are added to losses.
func NewBuffered(to io.Writer, losses *Losses) *Buffered {
	return &Buffered{to: to, losses: losses, full: make(chan struct{}, 1)}
}

// Write takes whole lines. It never fails: lost lines are counted.
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

// Run writes the collected lines until ctx is done, and then the remaining ones.
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
			spare = nil // oversized after a burst
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
