package main

import (
	"net/http"
	"slices"
	"time"
)

// deafWatches is the number of watches whose clients never read, deafUpdates the number of changes meanwhile.
const (
	deafWatches = 2000
	deafUpdates = 500
	deafCell    = "watch=deaf"
)

// deaf measures the memory of watches whose clients never read, and the time of a write meanwhile.
func (b *bench) deaf(int) error {
	return b.each("watches that never read on", b.deafOf)
}

func (b *bench) deafOf(p *peer) error {
	c, err := p.dial()
	if err != nil {
		return err
	}
	defer c.close()
	path := flunders(watchNamespace)
	if _, err := c.get(path + "/" + watched(0)); err != nil {
		if _, err := c.do(http.MethodPost, path, "application/json", flunder(watchNamespace, watched(0), 0)); err != nil {
			return err
		}
	}
	version, err := latest(c)
	if err != nil {
		return err
	}
	before, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	count, updates := deafWatches, deafUpdates
	if b.settings.short {
		count, updates = count/10, updates/5
	}
	for numbers := range slices.Chunk(indexes(count), watchesPerConnection) {
		w, err := openWatches(p.address, p.tls, path, version, numbers, func(int, []byte, time.Time) {})
		if err != nil {
			return err
		}
		defer w.conn.close()
	}
	var took []time.Duration
	for range updates {
		b.written++
		began := time.Now()
		if _, err := c.do(http.MethodPatch, path+"/"+watched(0), "application/merge-patch+json", change(b.written)); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	after, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	slices.Sort(took)
	b.results.add(
		b.raw,
		deafCell,
		p.name,
		updates,
		took[len(took)/2],
		value{
			"KB/watch",
			(after - before) * 1024 / float64(count),
		},
		value{"p50-ms", percentile(took, 0.50)},
		value{"p99-ms", percentile(took, 0.99)},
	)
	return nil
}
