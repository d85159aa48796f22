package main

import (
	"fmt"
	"io"
	"time"
)

const (
	// burstClients send updates for burstTime after the servers have rested for burstRest. Connections stay open
	// meanwhile: servers close them after 90 s.
	burstClients = 64
	burstTime    = 2 * time.Second
	burstRest    = time.Minute
	// warmBursts follow each other before the rest; the last one is the warm figure.
	warmBursts = 4
)

// bursts measures updates right after a minute's rest against updates of a warm server. All peers rest at the same
// time.
func (b *bench) bursts(round int) error {
	peers := turns(b.fleet.requested(), round)
	clients := map[string][]*client{}
	defer func() {
		for _, of := range clients {
			for _, c := range of {
				c.conn.close()
			}
		}
	}()
	for _, p := range peers {
		opened, err := p.clients(burstClients)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		clients[p.name] = opened
		if _, err := p.drive(opened, (*client).create, burstTime/2); err != nil {
			return fmt.Errorf("create on %s: %w", p.name, err)
		}
	}
	burst := func(name string, times int) error {
		for _, p := range peers {
			var m measured
			for range times {
				var err error
				if m, err = p.drive(clients[p.name], (*client).update, burstTime); err != nil {
					return fmt.Errorf("%s updates on %s: %w", name, p.name, err)
				}
			}
			memory, err := resident(p.server.PID())
			if err != nil {
				return err
			}
			b.results.add(b.raw, "burst="+name, p.name, m.count, m.took, append(m.values(), value{"server-MB", memory})...)
		}
		return nil
	}
	if err := burst("warm", warmBursts); err != nil {
		return err
	}
	select {
	case <-time.After(burstRest):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	if err := burst("rested", 1); err != nil {
		return err
	}
	for _, p := range peers {
		if _, err := p.drive(clients[p.name], (*client).delete, patience); err != nil {
			return fmt.Errorf("clean up on %s: %w", p.name, err)
		}
	}
	return nil
}

// writeBursts writes the cost of a burst after a rest.
func (b *bench) writeBursts(w io.Writer) {
	if !b.settings.has(partBursts) {
		return
	}
	fmt.Fprintf(w, "## Rest, then a burst\n\n%d clients update objects for %s, warm and after a rest of %s: processor time for each "+
		"update, and resident memory after it.\n\n",
		burstClients, burstTime, burstRest)
	b.results.table(w, []line{
		{"warm: us of processor time", "burst=warm", "cpu-us/req", false},
		{"after a rest: us of processor time", "burst=rested", "cpu-us/req", false},
		{"warm: updates/s", "burst=warm", "req/s", true},
		{"after a rest: updates/s", "burst=rested", "req/s", true},
		{"warm: resident, MB", "burst=warm", "server-MB", false},
		{"after a rest: resident, MB", "burst=rested", "server-MB", false},
	})
}
