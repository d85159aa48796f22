package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// memory measures the memory of servers and stores now.
func (b *bench) memory(when string) error {
	for _, p := range b.fleet.peers {
		if p.name == bare {
			continue
		}
		var server [3]float64
		var err error
		for i, name := range []string{"VmRSS", "RssAnon", "RssFile"} {
			if server[i], err = memoryOf(p.server.PID(), name); err != nil {
				return err
			}
		}
		values := []value{{"server-MB", server[0]}, {"anonymous-MB", server[1]}, {"file-MB", server[2]}, {"total-MB", server[0]}}
		if p.etcd != nil {
			store, err := resident(p.etcd.PID())
			if err != nil {
				return err
			}
			values = append(values[:3], value{"store-MB", store}, value{"total-MB", server[0] + store})
		}
		b.results.add(b.raw, "memory="+when, p.name, 1, 0, values...)
	}
	return nil
}

// idleWatches measures the memory of watches without events.
func (b *bench) idleWatches(int) error {
	return b.each("idle watches on", b.idle)
}

// each measures one peer after the other; what names the measurement in an error.
func (b *bench) each(what string, measure func(*peer) error) error {
	for _, p := range b.fleet.peers {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		if err := measure(p); err != nil {
			return fmt.Errorf("%s %s: %w", what, p.name, err)
		}
	}
	return nil
}

func (b *bench) idle(p *peer) error {
	c, err := p.dial()
	if err != nil {
		return err
	}
	defer c.close()
	version, err := latest(c)
	if err != nil {
		return err
	}
	before, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	for n := 0; n < b.settings.idle; n += watchesPerConnection {
		w, err := openWatches(
			p.address,
			p.tls,
			flunders(watchNamespace),
			version,
			indexes(watchesPerConnection),
			func(int, []byte, time.Time) {},
		)
		if err != nil {
			return err
		}
		defer w.conn.close()
	}
	after, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	b.results.add(b.raw, "watch=idle", p.name, b.settings.idle, 0, value{"KB/watch", (after - before) * 1024 / float64(b.settings.idle)})
	return nil
}

const (
	churnClients = 16
	// churnRate is the number of objects that are created, changed and deleted in a second, on each peer: less than
	// the capacity of any of them, so that all do the same.
	churnRate = 80
	// churnAlive is the number of a client's live objects.
	churnAlive = 6
)

// churn creates, changes and deletes objects on all peers at the same time, with few live objects at any time, and
// measures the memory afterwards.
func (b *bench) churn() error {
	failed := make([]error, len(b.fleet.peers))
	var peers sync.WaitGroup
	for i, p := range b.fleet.peers {
		if p.name != bare {
			peers.Go(func() { failed[i] = b.churned(p) })
		}
	}
	peers.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return b.memory("churned")
}

func (b *bench) churned(p *peer) error {
	clients, err := p.clients(churnClients)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	defer func() {
		for _, c := range clients {
			c.conn.close()
		}
	}()
	until := time.Now().Add(b.settings.churn)
	failed := make([]error, churnClients)
	var working sync.WaitGroup
	for n, c := range clients {
		working.Go(func() {
			ticks := time.NewTicker(time.Second * churnClients / churnRate)
			defer ticks.Stop()
			for i := 0; time.Now().Before(until) && b.ctx.Err() == nil && failed[n] == nil; i++ {
				failed[n] = c.live(n, i)
				<-ticks.C
			}
		})
	}
	working.Wait()
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// live creates an object, changes it, and deletes an older one.
func (c *client) live(n, i int) error {
	name := func(i int) string { return fmt.Sprintf("churned-%02d-%06d", n, i) }
	if _, err := c.conn.do(http.MethodPost, flunders(churnNamespace), "application/json", flunder(churnNamespace, name(i), i)); err != nil {
		return err
	}
	if _, err := c.conn.do(
		http.MethodPatch,
		flunders(churnNamespace)+"/"+name(i),
		"application/merge-patch+json",
		change(50_000_000+i),
	); err != nil {
		return err
	}
	if i < churnAlive {
		return nil
	}
	_, err := c.conn.do(http.MethodDelete, flunders(churnNamespace)+"/"+name(i-churnAlive), "", nil)
	return err
}

// million is the number of objects of the largest server.
const million = 1_000_000

// alone measures Annex with very many objects, in a process of its own.
func (b *bench) alone(part string) error {
	dir := filepath.Join(b.work, part)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	one := &fleet{}
	defer one.close()
	if err := one.startAnnex(b.ctx, b.settings.bin, filepath.Join(b.settings.bin, "wardle"), dir, embedded, false); err != nil {
		return err
	}
	if err := one.namespaces(); err != nil {
		return err
	}
	if part == partMillion {
		return b.ofAMillion(one.peers[0])
	}
	return b.large(one.peers[0])
}

// restTime is the time for a server to release unneeded memory.
const restTime = 15 * time.Second

func (b *bench) rest() error {
	select {
	case <-time.After(restTime):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// empty measures the memory of servers that have started and have no requests.
func (b *bench) empty() error {
	if err := b.rest(); err != nil {
		return err
	}
	return b.memory("empty")
}

// largeObject returns an object of 2 KB, in the form of a response.
func largeObject(i int) []byte {
	object := flunder(listNamespace, fmt.Sprintf("large-%07d", i), i)
	return bytes.Replace(object, []byte(note), []byte(note+strings.Repeat("0123456789", 100)), 1)
}

// large measures the memory of a server with many objects, and its highest increase while lists of all of them are
// answered.
func (b *bench) large(p *peer) error {
	if err := p.load(0, b.settings.all, largeObject); err != nil {
		return err
	}
	held, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	if err := b.rest(); err != nil {
		return err
	}
	rested, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	b.results.add(b.raw, "large=held", p.name, b.settings.all, 0, value{"filled-MB", held}, value{"server-MB", rested})
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, c := range []struct {
		cell, query, accept string
		clients             int
	}{
		{"large=list", "", "", 1},
		{"large=lists", "", "", 20},
		{"large=tables", "", table, 8},
		{"large=pretty", "?pretty=true", "", 8},
	} {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		more, took, err := p.peak(c.clients, flunders(listNamespace)+c.query, c.accept)
		if err != nil {
			return fmt.Errorf("%s: %w", c.cell, err)
		}
		b.results.add(b.raw, c.cell, p.name, c.clients, took, value{"more-MB", more}, value{"s", took.Seconds()})
	}
	return nil
}

// peak returns the highest increase of a server's memory while clients concurrently request a list. The server may
// make them retry.
func (p *peer) peak(count int, path, accept string) (more float64, took time.Duration, err error) {
	if err := resetPeak(p.server.PID()); err != nil {
		return 0, 0, err
	}
	before, err := resident(p.server.PID())
	if err != nil {
		return 0, 0, err
	}
	clients, err := p.clients(count)
	if err != nil {
		return 0, 0, err
	}
	failed := make([]error, count)
	began := time.Now()
	var listing sync.WaitGroup
	for i, c := range clients {
		c.conn.accept, c.conn.discard = accept, true
		listing.Go(func() {
			defer c.conn.close()
			for {
				_, failed[i] = c.conn.get(path)
				if failed[i] == nil || !strings.Contains(failed[i].Error(), ": 429 ") || time.Since(began) > 10*patience {
					return
				}
				time.Sleep(time.Second) // as Retry-After requires
			}
		})
	}
	listing.Wait()
	if err := errors.Join(failed...); err != nil {
		return 0, 0, err
	}
	after, err := memoryOf(p.server.PID(), "VmHWM")
	return after - before, time.Since(began), err
}

// ofAMillion measures whether a server is as fast with a million objects as with ten thousand, the time to start with
// them, and the memory then.
func (b *bench) ofAMillion(p *peer) error {
	few := b.settings.objects
	rate := func(from, to int) (float64, error) {
		began := time.Now()
		err := p.load(from, to, func(i int) []byte { return flunder(listNamespace, fmt.Sprintf("million-%07d", i), i) })
		return float64(to-from) / time.Since(began).Seconds(), err
	}
	first, err := rate(0, few)
	if err != nil {
		return err
	}
	if _, err := rate(few, million-few); err != nil {
		return err
	}
	last, err := rate(million-few, million)
	if err != nil {
		return err
	}
	loaded, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	p.server.Kill()
	began := time.Now()
	if err := p.server.Start(b.ctx); err != nil {
		return err
	}
	ready := time.Since(began)
	c, err := p.dial()
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.get(fmt.Sprintf("%s?limit=%d", flunders(listNamespace), pageSize)); err != nil {
		return err
	}
	page := time.Since(began)
	again, err := resident(p.server.PID())
	if err != nil {
		return err
	}
	b.results.add(b.raw, "million", p.name, million, page, value{"first-creates/s", first}, value{"last-creates/s", last},
		value{"loaded-MB", loaded}, value{"ready-s", ready.Seconds()}, value{"page-s", page.Seconds()}, value{"restarted-MB", again})
	return nil
}
