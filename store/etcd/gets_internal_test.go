package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// keys is an etcd in which the value of every key is the number of requests sent before. Its requests wait until
// letGo releases them.
type keys struct {
	clientv3.KV
	letGo chan struct{}
	fails error // of transactions

	mu           sync.Mutex
	sent         int
	transactions []int // the number of keys that each has read
}

func (k *keys) send(ctx context.Context) (int, error) {
	k.mu.Lock()
	n := k.sent
	k.sent++
	k.mu.Unlock()
	select {
	case <-k.letGo:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (k *keys) value(key string, n int) []*mvccpb.KeyValue {
	if key == "missing" {
		return nil
	}
	return []*mvccpb.KeyValue{{Key: []byte(key), Value: fmt.Append(nil, n)}}
}

func (k *keys) Get(ctx context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	n, err := k.send(ctx)
	if err != nil {
		return nil, err
	}
	return (*clientv3.GetResponse)(&etcdserverpb.RangeResponse{Kvs: k.value(key, n)}), nil
}

func (k *keys) Txn(ctx context.Context) clientv3.Txn { return &transaction{keys: k, ctx: ctx} }

type transaction struct {
	clientv3.Txn
	keys       *keys
	ctx        context.Context
	operations []clientv3.Op
}

func (t *transaction) Then(operations ...clientv3.Op) clientv3.Txn {
	t.operations = operations
	return t
}

func (t *transaction) Commit() (*clientv3.TxnResponse, error) {
	n, err := t.keys.send(t.ctx)
	if err != nil {
		return nil, err
	}
	t.keys.mu.Lock()
	t.keys.transactions = append(t.keys.transactions, len(t.operations))
	t.keys.mu.Unlock()
	if t.keys.fails != nil {
		return nil, t.keys.fails
	}
	response := &etcdserverpb.TxnResponse{Succeeded: true}
	for _, operation := range t.operations {
		response.Responses = append(response.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{
			ResponseRange: &etcdserverpb.RangeResponse{Kvs: t.keys.value(string(operation.KeyBytes()), n)},
		}})
	}
	return (*clientv3.TxnResponse)(response), nil
}

func TestGets_waitingReads_shareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{letGo: make(chan struct{})}
		g := &gets{kv: k}
		var reading sync.WaitGroup
		read := func(key string, earliest int) {
			reading.Go(func() {
				got, err := g.get(t.Context(), key)
				switch {
				case err != nil:
					t.Error(err)
				case key == "missing":
					if got != nil {
						t.Errorf("a key that there is not has %s", got.Value)
					}
				default:
					var n int
					if _, err := fmt.Sscan(string(got.Value), &n); err != nil || string(got.Key) != key || n < earliest {
						t.Errorf("%s got %s %s, which was read before the request number %d", key, got.Key, got.Value, earliest)
					}
				}
			})
		}
		for i := range getsInFlight {
			read(fmt.Sprint("alone", i), 0)
		}
		synctest.Wait()
		for i := range getsTogether + 8 {
			read(fmt.Sprint("together", i), getsInFlight)
		}
		read("missing", getsInFlight)
		synctest.Wait()
		if k.sent != getsInFlight {
			t.Fatalf("%d requests are in flight, want %d", k.sent, getsInFlight)
		}
		close(k.letGo)
		reading.Wait()
		synctest.Wait()
		if got := fmt.Sprint(k.transactions); got != fmt.Sprint([]int{getsTogether, 9}) && got != fmt.Sprint([]int{9, getsTogether}) {
			t.Errorf("transactions of %s keys", got)
		}
		if g.inFlight != 0 || len(g.waiting) != 0 {
			t.Errorf("%d are in flight, %d wait", g.inFlight, len(g.waiting))
		}
	})
}

func TestGets_canceledRead_delaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{letGo: make(chan struct{})}
		g := &gets{kv: k}
		ctx, cancel := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		for i := range 2 * getsInFlight { // half of them are in flight, the others wait
			reading.Go(func() {
				if _, err := g.get(ctx, fmt.Sprint(i)); !errors.Is(err, context.Canceled) {
					t.Errorf("given up with %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		reading.Wait()
		close(k.letGo)
		if got, err := g.get(t.Context(), "next"); err != nil || string(got.Key) != "next" {
			t.Errorf("%v, %v", got, err)
		}
		synctest.Wait()
		if g.inFlight != 0 || len(g.waiting) != 0 {
			t.Errorf("%d are in flight, %d wait", g.inFlight, len(g.waiting))
		}
	})
}

func TestGets_canceledReads_doNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{letGo: make(chan struct{})}
		g := &gets{kv: k}
		var reading sync.WaitGroup
		read := func(ctx context.Context, key string, want error) {
			reading.Go(func() {
				if _, err := g.get(ctx, key); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", key, err, want)
				}
			})
		}
		for i := range getsInFlight {
			read(t.Context(), fmt.Sprint("in flight", i), nil)
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 10 * getsTogether {
			read(ctx, fmt.Sprint("given up", i), context.Canceled)
			if i == getsTogether {
				synctest.Wait()
				read(t.Context(), "wanted", nil)
				synctest.Wait()
			}
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(g.waiting) != 1 || g.waiting[0].key != "wanted" {
			t.Errorf("%d wait", len(g.waiting))
		}
		close(k.letGo)
		reading.Wait()
		synctest.Wait()
		if fmt.Sprint(k.transactions) != "[1]" || g.inFlight != 0 {
			t.Errorf("transactions of %d keys, %d are in flight", k.transactions, g.inFlight)
		}
	})
}

func TestGets_failingTransactions_readsAreSeparate(t *testing.T) {
	for name, c := range map[string]struct {
		fails error
		apart bool
	}{
		"no such transactions": {errors.New("etcdserver: unsupported operations in txn request"), true},
		"another reason":       {errors.New("etcdserver: leader changed"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &keys{letGo: make(chan struct{}), fails: c.fails}
				g := &gets{kv: k}
				var reading sync.WaitGroup
				for i := range 3 * getsInFlight {
					reading.Go(func() {
						if got, err := g.get(t.Context(), fmt.Sprint(i)); err != nil || string(got.Key) != fmt.Sprint(i) {
							t.Errorf("%v, %v", got, err)
						}
					})
				}
				synctest.Wait()
				close(k.letGo)
				reading.Wait()
				synctest.Wait()
				if g.apart.Load() != c.apart || len(k.transactions) == 0 {
					t.Errorf("apart: %v after %d transactions", g.apart.Load(), len(k.transactions))
				}
			})
		})
	}
}
