package virtual

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/objects"
)

// refresh updates one object of the mirror to its state in the source at some time after the call.
func (m *Mirror) refresh(ctx context.Context, key string) error {
	asked := m.tick()
	t, back, err := m.take(ctx, key)
	if err != nil {
		return err
	}
	defer back()
	if t.read > asked {
		return nil // another waiting caller has refreshed the object
	}
	return m.read(ctx, key, t)
}

// read is refresh for a caller that holds the turn.
func (m *Mirror) read(ctx context.Context, key string, t *turn) error {
	for {
		began := m.begin(t)
		r, err := m.get(ctx, key)
		if err != nil {
			return err
		}
		shown, err := m.show(key, r, t)
		if err != nil {
			return err
		}
		if shown {
			t.read = began
			return nil
		}
	}
}

// begin records that a turn calls the source now, and returns the time.
func (m *Mirror) begin(t *turn) (now uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.changed = false
	m.clock++
	return m.clock
}

// show stores the source's result for a key in the mirror; r is nil if there is no such object. It returns false if a
// list has changed the object meanwhile, because the order of the two results is unknown.
func (m *Mirror) show(key string, r *row, t *turn) (shown bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.changed {
		return false, nil
	}
	if m.touched != nil {
		m.touched[key] = struct{}{}
	}
	return true, m.put(key, r)
}

// put stores a row in the mirror; nil deletes the object. It requires mu.
func (m *Mirror) put(key string, r *row) error {
	known := m.entries[key]
	if r == nil {
		if known == nil {
			return nil
		}
		if err := m.Interface.Delete(
			context.Background(),
			key,
			m.resource.New(),
			nil,
			rest.ValidateAllObjectFunc,
			nil,
			storage.DeleteOptions{},
		); err != nil {
			return m.broken("mirror the deletion of %s: %w", key, err)
		}
		delete(m.entries, key)
		return nil
	}
	if known != nil && known.same(r.version, r.sum) {
		return nil
	}
	out := m.resource.New()
	if err := m.mirror(key, r.object, out); err != nil {
		return m.broken("%s: %w", key, err)
	}
	revision, err := m.Versioner().ObjectResourceVersion(out)
	if err != nil {
		return m.broken("%s: %w", key, err)
	}
	if known == nil {
		known = &entry{}
		m.entries[key] = known
	}
	known.version, known.sum, known.revision = r.version, r.sum, revision
	return nil
}

// mirror writes an object to the mirror. Encoding calls conversions of users, and their panics must not propagate while
// mu is held.
func (m *Mirror) mirror(key string, object, out runtime.Object) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic while encoding: %v", reason)
		}
	}()
	return m.Interface.GuaranteedUpdate(context.Background(), key, out, true, nil,
		storage.SimpleUpdate(func(runtime.Object) (runtime.Object, error) { return object, nil }), nil)
}

// refreshAll is refresh for all objects.
func (m *Mirror) refreshAll(ctx context.Context) error { return m.refreshSince(ctx, m.tick()) }

// fill lists the source if the mirror has not been filled yet.
func (m *Mirror) fill(ctx context.Context) error {
	if m.isFilled() {
		return nil
	}
	return m.refreshSince(ctx, 0)
}

// fillOnce fills the mirror of a kind that can be watched, before the mirror returns its first resource version: no
// client could watch from a version before that. If it fails, single objects can still be read.
func (m *Mirror) fillOnce(ctx context.Context) {
	if m.source.Watched() {
		_ = m.fill(ctx)
	}
}

func (m *Mirror) isFilled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.filled
}

// refreshSince lists the source, unless another caller has done so since a moment.
func (m *Mirror) refreshSince(ctx context.Context, moment uint64) error {
	if err := m.wait(ctx, &m.lists); err != nil {
		return err
	}
	defer func() { m.lists.free <- struct{}{} }()
	if m.lists.read > moment {
		return nil
	}
	began := m.beginList()
	defer m.endList()
	doubtful, err := m.readList(ctx, began)
	if err != nil {
		return err
	}
	for _, key := range doubtful {
		if err := m.refresh(ctx, key); err != nil {
			return err
		}
	}
	m.lists.read = began
	return m.nowFilled(ctx)
}

func (m *Mirror) beginList() (now uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched = map[string]struct{}{}
	m.clock++
	return m.clock
}

func (m *Mirror) endList() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched = nil
}

// nowFilled expires the revisions at which the mirror was incomplete: a client that watched from one of them would get
// all other objects as new.
func (m *Mirror) nowFilled(ctx context.Context) error {
	if m.isFilled() {
		return nil
	}
	if err := m.core.Compact(ctx, m.core.Revision()); err != nil {
		return m.broken("mirror: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled = true
	return nil
}

// applied is the number of changes that a list makes before it releases mu for a moment.
const applied = 256

// readList updates the mirror to the source's list. It returns the keys for which the order of the list and a
// concurrent turn is unknown.
func (m *Mirror) readList(ctx context.Context, now uint64) (doubtful []string, err error) {
	objs, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := m.changed(ctx, objs, now)
	if err != nil {
		return nil, m.broken("List: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	apply := func(key string, r *row) error {
		if e := m.entries[key]; e != nil && r != nil && e.same(r.version, r.sum) {
			return nil
		}
		if _, ok := m.touched[key]; ok {
			doubtful = append(doubtful, key)
			return nil
		}
		if t := m.turns[key]; t != nil {
			t.changed = true
		}
		n++
		return m.put(key, r)
	}
	// pause releases mu for a moment after that many changes. apply skips keys that other callers touch meanwhile.
	pause := func() {
		if n >= applied {
			n = 0
			m.mu.Unlock()
			m.mu.Lock()
		}
	}
	for _, r := range rows {
		pause()
		if err := apply(r.key, r); err != nil {
			return nil, err
		}
		if e := m.entries[r.key]; e != nil {
			e.listed = now
		}
	}
	var gone []string
	for key, e := range m.entries {
		if e.listed != now {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		pause()
		if err := apply(key, nil); err != nil {
			return nil, err
		}
	}
	return doubtful, ctx.Err()
}

// changed returns the rows of a list that may differ from the mirror, and marks the entries of all known objects as
// listed. If the list is invalid, it returns an error and the mirror stays unchanged.
func (m *Mirror) changed(ctx context.Context, objs []runtime.Object, now uint64) ([]*row, error) {
	var rows []*row
	unknown := map[string]struct{}{}
	for begin := 0; begin < len(objs); begin += compared {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		end := min(begin+compared, len(objs))
		differ, err := m.compare(objs[begin:end], unknown, now)
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", begin+len(differ), err)
		}
		for i, differs := range differ {
			if !differs {
				continue
			}
			r, err := m.row(objs[begin+i])
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", begin+i, err)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// compared is the number of objects of a list that are compared before mu is released for a moment.
const compared = 1024

// compare reports for each object whether it may differ from the mirror. It stops at the first invalid object.
func (m *Mirror) compare(objs []runtime.Object, unknown map[string]struct{}, now uint64) (differ []bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, obj := range objs {
		if objects.IsNil(obj) {
			return differ, errors.New("it is nil")
		}
		given := objects.Meta(obj)
		key, err := m.checkNames(given.GetNamespace(), given.GetName())
		if err != nil {
			return differ, err
		}
		e := m.entries[key]
		_, twice := unknown[key]
		if twice || e != nil && e.listed == now {
			return differ, fmt.Errorf("%s is there twice", key)
		}
		if e == nil {
			unknown[key] = struct{}{}
		} else {
			e.listed = now
		}
		differ = append(differ, e == nil || e.version == "" || e.version != given.GetResourceVersion())
	}
	return differ, nil
}
