package virtual

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// turn lets one caller at a time call the source for an object, or for the list.
type turn struct {
	free    chan struct{} // holds a value while the turn is free
	wanted  int           // number of callers that hold the turn or wait for it
	read    uint64        // time of the last successful call of the source
	changed bool          // a list has changed the object since the source was called
}

func newFree() chan struct{} {
	free := make(chan struct{}, 1)
	free <- struct{}{}
	return free
}

// take waits for the turn of a key. The caller must call back to return it.
func (m *Mirror) take(ctx context.Context, key string) (t *turn, back func(), err error) {
	m.mu.Lock()
	t = m.turns[key]
	if t == nil {
		t = &turn{free: newFree()}
		m.turns[key] = t
	}
	t.wanted++
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.wanted--; t.wanted == 0 {
			delete(m.turns, key)
		}
	}
	if err := m.wait(ctx, t); err != nil {
		leave()
		return nil, nil, err
	}
	return t, func() {
		t.free <- struct{}{}
		leave()
	}, nil
}

// wait takes a turn that cannot be removed meanwhile.
func (m *Mirror) wait(ctx context.Context, t *turn) error {
	select {
	case <-t.free:
		return nil
	case <-ctx.Done():
		return apierrors.NewTimeoutError(fmt.Sprintf("waiting for the source of %s: %v", m.kind.GroupResource(), ctx.Err()), 0)
	}
}
