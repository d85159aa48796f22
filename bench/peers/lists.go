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

// load creates the objects that are listed, and those that restarts are measured with.
func (b *bench) load() error {
	for _, p := range b.fleet.peers {
		var next atomic.Int64
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
				for i := next.Add(1) - 1; i < int64(b.settings.objects); i = next.Add(1) - 1 {
					name := fmt.Sprintf("listed-%06d", i)
					if _, err := c.do(http.MethodPost, flunders(listNamespace), "application/json", flunder(listNamespace, name, int(i))); err != nil {
						failed[n] = err
						return
					}
				}
			})
		}
		loading.Wait()
		if err := errors.Join(failed...); err != nil {
			return fmt.Errorf("load %s: %w", p.name, err)
		}
	}
	return nil
}

// lists measures a client that lists all objects, and one that lists 1 % of them.
func (b *bench) lists(round int) error {
	cells := []struct {
		cell, query string
		want        int
	}{{"list=all", "", b.settings.objects}, {"list=selector", "?labelSelector=group%3Dgroup-07", b.settings.objects / groups}}
	for _, cell := range cells {
		for _, p := range b.turns(round) {
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

// restarts measures how long servers that were killed take from exec until they are
// ready and have answered a list. The store of those that have one beside them stays up.
func (b *bench) restarts(round, objects int) error {
	cell := fmt.Sprintf("restart/objects=%d", objects)
	for _, p := range b.turns(round) {
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

// firstList counts what the first list that is answered holds. A server may say that it
// is ready and yet ask clients to come again.
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

// memory measures what servers and stores hold now.
func (b *bench) memory(when string) error {
	for _, p := range b.fleet.peers {
		server, err := resident(p.server.PID())
		if err != nil {
			return err
		}
		values := []value{{"server-MB", server}, {"total-MB", server}}
		if p.etcd != nil {
			store, err := resident(p.etcd.PID())
			if err != nil {
				return err
			}
			values = append(values[:1], value{"store-MB", store}, value{"total-MB", server + store})
		}
		b.results.add(b.raw, "memory="+when, p.name, 1, 0, values...)
	}
	return nil
}
