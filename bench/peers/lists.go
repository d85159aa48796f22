package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// loaders create the listed objects.
const loaders = 32

// load creates the missing ones of the objects for lists and restarts.
func (b *bench) load(from, to int) error {
	for _, p := range b.fleet.peers {
		err := p.load(from, to, func(i int) []byte { return flunder(listNamespace, fmt.Sprintf("listed-%06d", i), i) })
		if err != nil {
			return fmt.Errorf("load %s: %w", p.name, err)
		}
	}
	return nil
}

// load creates objects with a range of numbers in the namespace of lists.
func (p *peer) load(from, to int, object func(i int) []byte) error {
	var next atomic.Int64
	next.Store(int64(from))
	failed := make([]error, loaders)
	var loading sync.WaitGroup
	for n := range loaders {
		loading.Go(func() {
			c, err := p.dial()
			if err != nil {
				failed[n] = err
				return
			}
			defer c.close()
			for i := next.Add(1) - 1; i < int64(to); i = next.Add(1) - 1 {
				if _, err := c.do(http.MethodPost, flunders(listNamespace), "application/json", object(int(i))); err != nil {
					failed[n] = err
					return
				}
			}
		})
	}
	loading.Wait()
	return errors.Join(failed...)
}

// lists measures a client that lists all objects, and a client that lists 1 % of them.
func (b *bench) lists(round int) error {
	cells := []struct {
		cell, query string
		want        int
	}{{"list=all", "", b.settings.objects}, {"list=selector", "?labelSelector=group%3Dgroup-07", b.settings.objects / groups}}
	for _, cell := range cells {
		for _, p := range b.turns(round) {
			if p.name == bare && cell.query != "" { // it has no selectors
				continue
			}
			if err := b.ctx.Err(); err != nil {
				return err
			}
			if err := b.list(p, cell.cell, cell.query, cell.want); err != nil {
				return fmt.Errorf("%s on %s: %w", cell.cell, p.name, err)
			}
		}
	}
	return nil
}

// manyLists measures a client that lists more objects than a cache may hold, at once and in pages.
func (b *bench) manyLists(round int) error {
	for _, p := range b.turns(round) {
		if p.name == bare { // its list has another length
			continue
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
		if err := b.list(p, "list=many", "", b.settings.many); err != nil {
			return fmt.Errorf("list of many on %s: %w", p.name, err)
		}
		if err := b.pages(p); err != nil {
			return fmt.Errorf("pages on %s: %w", p.name, err)
		}
	}
	return nil
}

const pageSize = 500

// pages measures a client that lists all objects page by page.
func (b *bench) pages(p *peer) error {
	clients, err := p.clients(1)
	if err != nil {
		return err
	}
	defer clients[0].conn.close()
	m, err := p.drive(clients, func(c *client, _ int) error {
		got := 0
		for token := ""; ; {
			answer, err := c.conn.get(fmt.Sprintf("%s?limit=%d&continue=%s", flunders(listNamespace), pageSize, token))
			if err != nil {
				return err
			}
			got += bytes.Count(answer, []byte(`"uid":"`))
			if token = string(text(answer, `"continue":"`)); token == "" {
				break
			}
		}
		if got != b.settings.many {
			return fmt.Errorf("pages have %d objects, want %d", got, b.settings.many)
		}
		return nil
	}, 2*b.settings.duration)
	if err != nil {
		return err
	}
	b.results.add(b.raw, "list=pages", p.name, m.count, m.took, m.values()...)
	return nil
}

func (b *bench) list(p *peer, cell, query string, want int) error {
	clients, err := p.clients(1)
	if err != nil {
		return err
	}
	defer clients[0].conn.close()
	size := 0
	list := func(c *client, _ int) error {
		answer, err := c.conn.get(flunders(listNamespace) + query)
		size = len(answer)
		return err
	}
	if err := list(clients[0], 0); err != nil { // the first one is not measured
		return err
	}
	if got := bytes.Count(clients[0].conn.body, []byte(`"uid":"`)); got != want {
		return fmt.Errorf("a list of %d objects, want %d", got, want)
	}
	m, err := p.drive(clients, list, 2*b.settings.duration)
	if err != nil {
		return err
	}
	b.results.add(b.raw, cell, p.name, m.count, m.took, append(m.values(), value{"MB", float64(size) / 1e6})...)
	return nil
}

// restarts measures the time that killed servers take from exec until they are ready and have answered a list. A
// separate store stays up.
func (b *bench) restarts(round, objects int) error {
	cell := fmt.Sprintf("restart/objects=%d", objects)
	for _, p := range b.turns(round) {
		if p.name == bare { // it keeps nothing
			continue
		}
		if err := b.ctx.Err(); err != nil {
			return err
		}
		p.server.Kill()
		start := time.Now()
		if err := p.server.Start(b.ctx); err != nil {
			return err
		}
		ready := time.Since(start)
		got, err := p.firstList(b.ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		listed := time.Since(start)
		if got != objects {
			return fmt.Errorf("%s lists %d objects after a restart, want %d", p.name, got, objects)
		}
		used, err := processorTime([]int{p.server.PID()})
		if err != nil {
			return err
		}
		b.results.add(b.raw, cell, p.name, 1, listed,
			value{"ready-s", ready.Seconds()}, value{"list-s", listed.Seconds()}, value{"cpu-s", used.Seconds()})
	}
	return nil
}

// firstList counts the objects in the first answered list. A ready server may still ask clients to retry.
func (p *peer) firstList(ctx context.Context) (int, error) {
	c, err := p.dial()
	if err != nil {
		return 0, err
	}
	defer c.close()
	for began := time.Now(); ; {
		answer, err := c.get(flunders(listNamespace))
		if err == nil {
			return bytes.Count(answer, []byte(`"uid":"`)), nil
		}
		if time.Since(began) > patience || ctx.Err() != nil {
			return 0, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
