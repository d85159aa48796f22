package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Each measurement has a namespace of its own.
const (
	requestsNamespace = "requests"
	watchNamespace    = "watched"
	listNamespace     = "listed"
	churnNamespace    = "churned"
)

func flunders(namespace string) string {
	return "/apis/wardle.example.com/v1alpha1/namespaces/" + namespace + "/flunders"
}

// groups is the number of values of the label group: one selects 1 %.
const groups = 100

const sequence = `"example.com/sequence":"`

// note gives objects a realistic size, about a kilobyte with the fields set by the server.
var note = strings.Repeat("image replicas template container port env value limit request ", 4)

func flunder(namespace, name string, i int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"namespace":%q,"name":%q,`+
		`"labels":{"app":"web","tier":"front","group":"group-%02d"},"annotations":{%s%08d","example.com/note":%q}},`+
		`"spec":{"reference":"another-flunder","referenceType":"Flunder"}}`, namespace, name, i%groups, sequence, i, note)
}

// change returns a merge patch.
func change(i int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%s%08d"}}}`, sequence, i)
}

// client makes requests, one after the other, to objects of its own.
type client struct {
	conn    *conn
	number  int
	names   []string
	objects [][]byte // as the server last sent them
	turn    int
}

// operation makes the i-th request. It returns errDone if there is nothing left to do.
type operation func(c *client, i int) error

var errDone = errors.New("nothing left to do")

// operations are the measured operations, in this order.
var operations = []struct {
	name string
	do   operation
}{
	{"create", (*client).create},
	{"get", (*client).getOne},
	{"update", (*client).update},
	{"merge patch", (*client).mergePatch},
	{"JSON patch", (*client).jsonPatch},
	{"apply", (*client).apply},
	{"delete", (*client).delete},
}

func (c *client) create(i int) error {
	name := fmt.Sprintf("web-%08x-%02d-%06d", rand.Uint32(), c.number, i)
	answer, err := c.conn.do(http.MethodPost, flunders(requestsNamespace), "application/json", flunder(requestsNamespace, name, i))
	if err != nil {
		return err
	}
	c.names = append(c.names, name)
	c.objects = append(c.objects, bytes.Clone(answer))
	return nil
}

// one returns the next of the client's objects.
func (c *client) one() (int, string) {
	c.turn = (c.turn + 1) % len(c.names)
	return c.turn, flunders(requestsNamespace) + "/" + c.names[c.turn]
}

func (c *client) getOne(int) error {
	_, path := c.one()
	_, err := c.conn.get(path)
	return err
}

// page lists the objects, 500 at once.
func (c *client) page(int) error {
	_, err := c.conn.get(flunders(requestsNamespace) + "?limit=500")
	return err
}

// update sends the object from the server's last response, with one change, as controllers do.
func (c *client) update(i int) error {
	n, path := c.one()
	object := c.objects[n]
	at := bytes.Index(object, []byte(sequence))
	if at < 0 {
		return fmt.Errorf("no sequence in %s", object)
	}
	copy(object[at+len(sequence):], fmt.Sprintf("%08d", 10_000_000+i))
	answer, err := c.conn.do(http.MethodPut, path, "application/json", object)
	if err != nil {
		return err
	}
	c.objects[n] = append(object[:0], answer...)
	return nil
}

func (c *client) mergePatch(i int) error {
	_, path := c.one()
	_, err := c.conn.do(http.MethodPatch, path, "application/merge-patch+json", change(20_000_000+i))
	return err
}

func (c *client) jsonPatch(i int) error {
	_, path := c.one()
	patch := fmt.Appendf(nil, `[{"op":"replace","path":"/metadata/annotations/example.com~1sequence","value":"%08d"}]`, 30_000_000+i)
	_, err := c.conn.do(http.MethodPatch, path, "application/json-patch+json", patch)
	return err
}

func (c *client) apply(i int) error {
	_, path := c.one()
	configuration := fmt.Appendf(
		nil,
		`{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"annotations":{%s%08d"}}}`,
		sequence,
		40_000_000+i,
	)
	_, err := c.conn.do(http.MethodPatch, path+"?fieldManager=applier&force=true", "application/apply-patch+yaml", configuration)
	return err
}

func (c *client) delete(int) error {
	last := len(c.names) - 1
	if last < 0 {
		return errDone
	}
	_, err := c.conn.do(http.MethodDelete, flunders(requestsNamespace)+"/"+c.names[last], "", nil)
	c.names, c.objects = c.names[:last], c.objects[:last]
	return err
}

// clients returns the largest measured number of clients, with a connection each.
func (p *peer) clients(count int) ([]*client, error) {
	var all []*client
	for i := range count {
		c, err := p.dial()
		if err != nil {
			for _, open := range all {
				open.conn.close()
			}
			return nil, err
		}
		all = append(all, &client{conn: c, number: i})
	}
	return all, nil
}

// measured is the result of a number of clients together.
type measured struct {
	count     int
	took      time.Duration
	processor time.Duration
	latencies []time.Duration // sorted
}

// drive makes clients repeat an operation for some time.
func (p *peer) drive(clients []*client, do operation, duration time.Duration) (measured, error) {
	var m measured
	before, err := processorTime(p.pids())
	if err != nil {
		return m, err
	}
	latencies, failed := make([][]time.Duration, len(clients)), make([]error, len(clients))
	start := time.Now()
	var working sync.WaitGroup
	for n, c := range clients {
		working.Go(func() {
			for i := 0; ; i++ {
				began := time.Now()
				if began.Sub(start) >= duration && i > 0 {
					return
				}
				if err := do(c, i); err != nil {
					if !errors.Is(err, errDone) {
						failed[n] = err
					}
					return
				}
				latencies[n] = append(latencies[n], time.Since(began))
			}
		})
	}
	working.Wait()
	m.took = time.Since(start)
	after, err := processorTime(p.pids())
	if err = errors.Join(append(failed, err)...); err != nil {
		return m, err
	}
	m.processor = after - before
	m.latencies = slices.Concat(latencies...)
	slices.Sort(m.latencies)
	m.count = len(m.latencies)
	return m, nil
}

func (m measured) values() []value {
	return []value{
		{"req/s", float64(m.count) / m.took.Seconds()},
		{"p50-ms", percentile(m.latencies, 0.50)},
		{"p99-ms", percentile(m.latencies, 0.99)},
		{"cpu-us/req", float64(m.processor.Microseconds()) / float64(m.count)},
	}
}

var clientCounts = []int{1, 16, 64}

func requestsCell(operation string, clients int) string {
	return fmt.Sprintf("op=%s/clients=%d", strings.ReplaceAll(operation, " ", "-"), clients)
}

// requests measures single requests. The peers alternate at each operation.
func (b *bench) requests(round int) error {
	for _, count := range clientCounts {
		if err := b.requestsOf(count, round); err != nil {
			return err
		}
	}
	return nil
}

// requestsOf measures requests of a number of clients. Each number has connections of its own, because servers close
// connections that are unused for 90 s, which is less than the measurements of the smaller numbers take.
func (b *bench) requestsOf(count, round int) error {
	clients := map[string][]*client{}
	defer func() {
		for _, of := range clients {
			for _, c := range of {
				c.conn.close()
			}
		}
	}()
	peers := b.fleet.requested()
	for _, p := range peers {
		opened, err := p.clients(count)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		clients[p.name] = opened
	}
	for _, op := range operations {
		for _, p := range turns(peers, round) {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			m, err := p.drive(clients[p.name], op.do, b.settings.duration)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", op.name, p.name, err)
			}
			b.results.add(b.raw, requestsCell(op.name, count), p.name, m.count, m.took, m.values()...)
			if op.name == "create" && b.objectSize == 0 {
				b.objectSize = len(clients[p.name][0].objects[0])
			}
			if op.name == "delete" { // the remaining objects are not measured
				if _, err := p.drive(clients[p.name], op.do, patience); err != nil {
					return fmt.Errorf("clean up on %s: %w", p.name, err)
				}
			}
		}
	}
	return nil
}
