package etcd

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store"
)

// pending is the storage of a resource that was opened before etcd has answered for the first time. Until then it
// rejects every request with a 503 that clients retry after a second.
type pending struct {
	resource store.Resource

	mu     sync.RWMutex
	opened *opened          // nil until etcd has answered
	keys   storage.KeysFunc // to be passed to opened
	closed bool
}

var _ storage.Interface = (*pending)(nil)

// settle switches to the real storage.
func (p *pending) settle(opened *opened) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = opened
	if p.closed {
		opened.close()
	}
	if p.keys == nil {
		return nil
	}
	return opened.EnableResourceSizeEstimation(p.keys)
}

// close closes the storage, now or when it is opened.
func (p *pending) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.opened != nil {
		p.opened.close()
	}
}

func (p *pending) storage() (storage.Interface, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.opened == nil {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusServiceUnavailable,
			Reason:  metav1.StatusReasonServiceUnavailable,
			Message: fmt.Sprintf("%s are stored in etcd, which has not answered since the server started", p.resource.Resource),
			Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
		}}
	}
	return p.opened, nil
}

// Versioner implements storage.Interface.
func (p *pending) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// Create implements storage.Interface.
func (p *pending) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (p *pending) Delete(
	ctx context.Context,
	key string,
	out runtime.Object,
	preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
	cached runtime.Object,
	options storage.DeleteOptions,
) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.Delete(ctx, key, out, preconditions, validate, cached, options)
}

// GuaranteedUpdate implements storage.Interface.
func (p *pending) GuaranteedUpdate(
	ctx context.Context,
	key string,
	out runtime.Object,
	ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
	cached runtime.Object,
) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
}

// Watch implements storage.Interface.
func (p *pending) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	s, err := p.storage()
	if err != nil {
		return nil, err
	}
	return s.Watch(ctx, key, options)
}

// Get implements storage.Interface.
func (p *pending) Get(ctx context.Context, key string, options storage.GetOptions, out runtime.Object) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.Get(ctx, key, options, out)
}

// GetList implements storage.Interface.
func (p *pending) GetList(ctx context.Context, key string, options storage.ListOptions, list runtime.Object) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.GetList(ctx, key, options, list)
}

// Stats implements storage.Interface.
func (p *pending) Stats(ctx context.Context) (storage.Stats, error) {
	s, err := p.storage()
	if err != nil {
		return storage.Stats{}, err
	}
	return s.Stats(ctx)
}

// ReadinessCheck implements storage.Interface.
func (p *pending) ReadinessCheck() error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.ReadinessCheck()
}

// RequestWatchProgress implements storage.Interface.
func (p *pending) RequestWatchProgress(ctx context.Context) error {
	s, err := p.storage()
	if err != nil {
		return err
	}
	return s.RequestWatchProgress(ctx)
}

// GetCurrentResourceVersion implements storage.Interface.
func (p *pending) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	s, err := p.storage()
	if err != nil {
		return 0, err
	}
	return s.GetCurrentResourceVersion(ctx)
}

// EnableResourceSizeEstimation implements storage.Interface.
func (p *pending) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opened == nil {
		p.keys = keys
		return nil
	}
	return p.opened.EnableResourceSizeEstimation(keys)
}

// CompactRevision implements storage.Interface.
func (p *pending) CompactRevision() int64 {
	s, err := p.storage()
	if err != nil {
		return 0
	}
	return s.CompactRevision()
}
