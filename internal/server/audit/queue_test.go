package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annexapi/annex/config"
)

// queued runs a queue in a synctest bubble. It returns a function that lists the batches sent so far, the queue, and
// a function that ends it.
func queued(t *testing.T, o config.AuditBatchOptions, maxBytes int64) (sent func() string, q *queue, end func()) {
	q = newQueue(o, maxBytes, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var batches []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.run(ctx, func(events [][]byte) {
			mu.Lock()
			defer mu.Unlock()
			var batch []string
			for _, e := range events {
				batch = append(batch, string(e))
			}
			batches = append(batches, strings.Join(batch, ","))
		})
	}()
	sent = func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		all := slices.Sorted(slices.Values(batches)) // senders may overtake each other
		return strings.Join(all, " ")
	}
	return sent, q, func() { cancel(); <-done }
}

func put(t *testing.T, q *queue, events ...string) {
	t.Helper()
	for _, e := range events {
		if err := q.add([]byte(e)); err != nil {
			t.Errorf("%s: %v", e, err)
		}
	}
}

func TestQueue_sendsFullOrDueBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, q, end := queued(t, config.AuditBatchOptions{BufferSize: 10, MaxSize: 3, MaxWait: time.Minute, ThrottleQPS: -1}, 0)
		put(t, q, "a1", "a2", "a3", "b1", "b2")
		if got := sent(); got != "a1,a2,a3" {
			t.Errorf("at once: %s", got)
		}
		time.Sleep(time.Minute)
		if got := sent(); got != "a1,a2,a3 b1,b2" {
			t.Errorf("after a minute: %s", got)
		}
		time.Sleep(time.Hour)
		put(t, q, "c1")
		time.Sleep(time.Minute - 1)
		if got := sent(); got != "a1,a2,a3 b1,b2" {
			t.Errorf("an event did not wait for others: %s", got)
		}
		put(t, q, "c2")
		end()
		if got := sent(); got != "a1,a2,a3 b1,b2 c1,c2" {
			t.Errorf("in the end: %s", got)
		}
	})
}

func TestQueue_maxBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, q, end := queued(t, config.AuditBatchOptions{BufferSize: 10, MaxSize: 10, MaxWait: time.Minute, ThrottleQPS: -1}, 5)
		put(t, q, "a1", "a2", "b1", "c-is-large", "d1", "d2")
		end()
		if got := sent(); got != "a1,a2 b1 c-is-large d1,d2" {
			t.Errorf("got %s", got)
		}
	})
}

func TestQueue_throttle_endsWithServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, q, end := queued(t, config.AuditBatchOptions{BufferSize: 10, MaxSize: 1, ThrottleQPS: 1, ThrottleBurst: 2}, 0)
		put(t, q, "a", "b", "c", "d", "e")
		if got := sent(); got != "a b" {
			t.Errorf("at once: %s", got)
		}
		time.Sleep(time.Second)
		if got := sent(); got != "a b c" {
			t.Errorf("a second later: %s", got)
		}
		before := time.Now()
		end()
		if got := sent(); got != "a b c d e" || time.Since(before) != 0 {
			t.Errorf("in the end, after %v: %s", time.Since(before), got)
		}
	})
}

func TestQueue_fullOrClosed_rejects(t *testing.T) {
	q := newQueue(config.AuditBatchOptions{BufferSize: 2}, 0, 1)
	put(t, q, "a", "b")
	if err := q.add([]byte("c")); !errors.Is(err, errFull) {
		t.Errorf("full: %v", err)
	}
	q.close()
	q.close()
	if err := q.add([]byte("d")); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestQueue_concurrentClose_losesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, q, end := queued(t, config.AuditBatchOptions{BufferSize: 10_000, MaxSize: 7, MaxWait: time.Second, ThrottleQPS: -1}, 0)
		var writers sync.WaitGroup
		var mu sync.Mutex
		var taken []string
		for w := range 8 {
			writers.Go(func() {
				for i := range 100 {
					e := fmt.Sprintf("%d-%d", w, i)
					if q.add([]byte(e)) == nil {
						mu.Lock()
						taken = append(taken, e)
						mu.Unlock()
					}
				}
			})
		}
		end()
		writers.Wait()
		got := strings.FieldsFunc(sent(), func(r rune) bool { return r == ' ' || r == ',' })
		slices.Sort(got)
		slices.Sort(taken)
		if !slices.Equal(got, taken) {
			t.Errorf("%d were taken, %d sent", len(taken), len(got))
		}
	})
}
