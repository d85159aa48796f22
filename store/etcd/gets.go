package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/annexapi/annex/store"
)

const (
	// getsInFlight is the number of requests for keys in flight beyond which reads are batched.
	getsInFlight = 4
	// getsTogether is the largest number of keys in a request: etcd allows 128 by default, and all their values are
	// in memory at once.
	getsTogether = 32
	// getsTime bounds a request for several reads, because the context of a single read must not end it.
	getsTime = 30 * time.Second
)

// gets reads single keys, linearizably. Reads that arrive while enough requests are in flight share the next request,
// as a transaction, which costs etcd and its client little more than a single read. A read is never answered by a
// request that was sent before the read arrived. The methods may be called concurrently.
type gets struct {
	kv clientv3.KV
	// apart makes each read a request of its own, because the server does not support transactions of reads.
	apart atomic.Bool

	mu       sync.Mutex
	inFlight int
	waiting  []*get
}

// get is a waiting read. Its result is set when done is closed.
type get struct {
	key  string
	done chan struct{}
	readResult
}

// readResult is the result of reading a key; value is nil if the key does not exist.
type readResult struct {
	value *mvccpb.KeyValue
	err   error
}

func (g *gets) get(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	if g.apart.Load() {
		got := g.one(ctx, key)
		return got.value, got.err
	}
	g.mu.Lock()
	if g.inFlight < getsInFlight {
		g.inFlight++
		g.mu.Unlock()
		got := g.one(ctx, key)
		g.next()
		return got.value, got.err
	}
	waits := &get{key: key, done: make(chan struct{})}
	g.waiting = append(g.waiting, waits)
	g.mu.Unlock()
	select {
	case <-waits.done:
		return waits.value, waits.err
	case <-ctx.Done():
		g.giveUp(waits)
		return nil, ctx.Err()
	}
}

// giveUp removes a read from the waiting ones. Otherwise abandoned reads would pile up while etcd does not answer,
// ahead of the reads that are still wanted.
func (g *gets) giveUp(waits *get) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, waits); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
}

// next is called when a request has ended, and sends the next one for the waiting reads.
func (g *gets) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.inFlight--
		return
	}
	count := min(len(g.waiting), getsTogether)
	together := slices.Clone(g.waiting[:count])
	if g.waiting = g.waiting[count:]; len(g.waiting) == 0 {
		g.waiting = nil
	}
	go func() {
		g.several(together)
		g.next()
	}()
}

func (g *gets) one(ctx context.Context, key string) readResult {
	response, err := g.kv.Get(ctx, key)
	if err != nil || len(response.Kvs) == 0 {
		return readResult{err: err}
	}
	return readResult{value: response.Kvs[0]}
}

func (g *gets) several(reads []*get) {
	ctx, cancel := context.WithTimeout(context.Background(), getsTime)
	defer cancel()
	operations := make([]clientv3.Op, len(reads))
	for i, read := range reads {
		operations[i] = clientv3.OpGet(read.key)
	}
	response, err := g.kv.Txn(ctx).Then(operations...).Commit()
	if err == nil && len(response.Responses) != len(reads) {
		err = fmt.Errorf("read %d keys: %d answers", len(reads), len(response.Responses))
	}
	if err != nil {
		if unsupported(err) {
			g.apart.Store(true)
		}
		// The response may be too large as a whole.
		for _, read := range reads {
			read.readResult = g.one(ctx, read.key)
			close(read.done)
		}
		return
	}
	for i, read := range reads {
		if values := response.Responses[i].GetResponseRange().GetKvs(); len(values) > 0 {
			read.value = values[0]
		}
		close(read.done)
	}
}

// reader decodes stored values as upstream's store does.
type reader struct {
	transformer value.Transformer
	decoder     etcd3.Decoder
}

func newReader(resource store.Resource) reader {
	r := reader{resource.Transformer, etcd3.NewDefaultDecoder(resource.Codec, storage.APIObjectVersioner{})}
	if r.transformer == nil {
		r.transformer = identity.NewEncryptCheckTransformer()
	}
	return r
}

// Get implements storage.Interface. Reads of the latest state are batched; others are upstream's.
func (r *resourceStorage) Get(ctx context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	if options.ResourceVersion != "" {
		return r.Interface.Get(ctx, key, options, out)
	}
	prepared, err := r.prepared(key)
	if err != nil {
		return err
	}
	began := time.Now()
	found, err := r.backend.gets.get(ctx, r.backend.root()+prepared)
	etcd3metrics.RecordEtcdRequest("get", r.resource.Resource, err, began)
	switch {
	case err != nil:
		return err
	case found == nil && options.IgnoreNotFound:
		return runtime.SetZeroValue(out)
	case found == nil:
		return storage.NewKeyNotFoundError(prepared, 0)
	}
	data, _, err := r.reader.transformer.TransformFromStorage(ctx, found.Value, r.backend.ValueContext(prepared))
	if err == nil {
		err = r.reader.decoder.Decode(data, out, found.ModRevision)
	}
	if err != nil { // upstream describes the error
		return r.Interface.Get(ctx, key, options, out)
	}
	return nil
}
