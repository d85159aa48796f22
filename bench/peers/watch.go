package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// watchesPerConnection is the number of watches of one client process; servers allow at most 100 by default.
	watchesPerConnection = 100
	// burstWriters is the number of concurrent writers in a burst, each with an object of its own.
	burstWriters = 16
)

// fanOut is one way of writing to watched objects.
type fanOut struct {
	watchers int
	burst    bool
	updates  int
	interval time.Duration // between the updates, if they are no burst
	// unmeasured fan-outs are the background of other measurements.
	unmeasured bool
}

func (f fanOut) cell() string {
	if f.burst {
		return fmt.Sprintf("watch=burst/watchers=%d", f.watchers)
	}
	return fmt.Sprintf("watch=paced/watchers=%d", f.watchers)
}

func (s settings) fanOuts() []fanOut {
	all := []fanOut{
		{watchers: 1, updates: 200, interval: 10 * time.Millisecond},
		{watchers: 1, burst: true, updates: 1000},
		{watchers: 100, updates: 200, interval: 10 * time.Millisecond},
		{watchers: 100, burst: true, updates: 500},
		{watchers: 1000, updates: 40, interval: 50 * time.Millisecond},
		{watchers: 1000, burst: true, updates: 100},
		{watchers: 5000, updates: 20, interval: 100 * time.Millisecond},
		{watchers: 5000, burst: true, updates: 50},
	}
	if s.short {
		for i := range all {
			all[i].updates /= 5
		}
	}
	return all
}

// watcher is the state of one watch. It belongs to the goroutine that reads its connection.
type watcher struct {
	seen      []bool
	missing   int
	version   uint64
	latencies []time.Duration
	err       error
}

// events measures the time in which changes reach watchers. Each watcher must see every change once and in order.
func (b *bench) events(round int) error {
	for _, f := range b.settings.fanOuts() {
		for _, p := range b.turns(round) {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			if err := b.fanOut(p, f); err != nil {
				return fmt.Errorf("%s on %s: %w", f.cell(), p.name, err)
			}
		}
	}
	return nil
}

func (b *bench) fanOut(p *peer, f fanOut) error {
	writers := make([]*conn, 1)
	if f.burst {
		writers = make([]*conn, burstWriters)
	}
	for i := range writers {
		c, err := p.dial()
		if err != nil {
			return err
		}
		defer c.close()
		writers[i] = c
		// It exists from the second time on.
		path := flunders(watchNamespace)
		if _, err := c.get(path + "/" + watched(i)); err != nil {
			if _, err := c.do(http.MethodPost, path, "application/json", flunder(watchNamespace, watched(i), 0)); err != nil {
				return err
			}
		}
	}
	version, err := latest(writers[0])
	if err != nil {
		return err
	}

	// Numbers are never reused, because a patch must change something.
	b.written += f.updates
	first := b.written
	sent := make([]atomic.Int64, f.updates) // nanoseconds since start
	start := time.Now()
	var complete sync.WaitGroup
	complete.Add(f.watchers)
	watchers := make([]*watcher, f.watchers)
	for i := range watchers {
		watchers[i] = &watcher{seen: make([]bool, f.updates), missing: f.updates, latencies: make([]time.Duration, 0, f.updates)}
	}
	on := func(n int, event []byte, at time.Time) {
		w := watchers[n]
		if w.missing > 0 && w.err == nil {
			w.take(event, first, func(i int) time.Duration { return at.Sub(start) - time.Duration(sent[i].Load()) })
			if w.missing == 0 || w.err != nil {
				complete.Done()
			}
		}
	}
	var connections []*watches
	var reading sync.WaitGroup
	broken := make(chan error, f.watchers/watchesPerConnection+1)
	closeAll := sync.OnceFunc(func() {
		for _, c := range connections {
			c.conn.close()
		}
		reading.Wait()
	})
	defer closeAll()
	for numbers := range slices.Chunk(indexes(f.watchers), watchesPerConnection) {
		c, err := openWatches(p.address, p.tls, flunders(watchNamespace), version, numbers, on)
		if err != nil {
			return err
		}
		connections = append(connections, c)
		reading.Go(func() {
			if err := c.run(); err != nil {
				broken <- err
			}
		})
	}

	before, err := processorTime(p.pids())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := f.write(writers, first, func(i int) { sent[i].Store(int64(time.Since(start))) }); err != nil {
		return err
	}
	all := make(chan struct{})
	go func() { complete.Wait(); close(all) }()
	select {
	case <-all:
	case err := <-broken:
		return err
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(patience):
	}
	took := time.Since(began)
	after, err := processorTime(p.pids())
	if err != nil {
		return err
	}
	closeAll()

	resumed, delivered := 0, 0
	for _, c := range connections {
		resumed += c.resumed
	}
	var latencies []time.Duration
	for i, w := range watchers {
		if w.err != nil {
			return fmt.Errorf("watch %d: %w", i, w.err)
		}
		if w.missing > 0 {
			return fmt.Errorf("watch %d has not seen %d of %d changes", i, w.missing, f.updates)
		}
		latencies = append(latencies, w.latencies...)
		delivered += len(w.latencies)
	}
	if f.unmeasured {
		return nil
	}
	slices.Sort(latencies)
	b.results.add(b.raw, f.cell(), p.name, delivered, took,
		value{"events/s", float64(delivered) / took.Seconds()},
		value{"p50-ms", percentile(latencies, 0.50)},
		value{"p99-ms", percentile(latencies, 0.99)},
		value{"cpu-us/event", float64((after - before).Microseconds()) / float64(delivered)},
		value{"resumed", float64(resumed)})
	return nil
}

// take checks an event and records its age. The numbers of changes begin with first.
func (w *watcher) take(event []byte, first int, age func(i int) time.Duration) {
	i, err := strconv.Atoi(string(text(event, sequence)))
	i -= first
	if err == nil && (i < 0 || i >= len(w.seen)) {
		err = fmt.Errorf("an event of no write of this run: %d", i)
	}
	version, versionErr := strconv.ParseUint(string(text(event, `"resourceVersion":"`)), 10, 64)
	switch {
	case err != nil || versionErr != nil:
		w.err = errors.Join(err, versionErr)
	case version <= w.version:
		w.err = fmt.Errorf("revision %d after %d", version, w.version)
	case w.seen[i]:
		w.err = fmt.Errorf("change %d twice", i)
	default:
		w.seen[i], w.version = true, version
		w.missing--
		w.latencies = append(w.latencies, age(i))
	}
}

// write makes the updates, whose numbers begin with first. It calls sending right before each update.
func (f fanOut) write(writers []*conn, first int, sending func(i int)) error {
	one := func(writer, i int) error {
		sending(i)
		_, err := writers[writer].do(
			http.MethodPatch,
			flunders(watchNamespace)+"/"+watched(writer),
			"application/merge-patch+json",
			change(first+i),
		)
		return err
	}
	if !f.burst {
		ticks := time.NewTicker(f.interval)
		defer ticks.Stop()
		for i := range f.updates {
			if err := one(0, i); err != nil {
				return err
			}
			<-ticks.C
		}
		return nil
	}
	failed := make([]error, len(writers))
	var next atomic.Int64
	var writing sync.WaitGroup
	for n := range writers {
		writing.Go(func() {
			for i := next.Add(1) - 1; i < int64(f.updates); i = next.Add(1) - 1 {
				if failed[n] = one(n, int(i)); failed[n] != nil {
					return
				}
			}
		})
	}
	writing.Wait()
	return errors.Join(failed...)
}

func watched(i int) string { return fmt.Sprintf("watched-%02d", i) }

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// latest returns the resource version of the watched collection.
func latest(c *conn) (string, error) {
	answer, err := c.get(flunders(watchNamespace))
	if err != nil {
		return "", err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return "", err
	}
	return list.Metadata.ResourceVersion, nil
}
