package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store"
)

var _ store.Historian = (*resourceStorage)(nil)

const (
	// mostPastBytes is the stored size of the objects of a page of the history after which the page ends.
	mostPastBytes = 1 << 20
	// mostTimed bounds the revisions that are read to find the one of a time.
	mostTimed = 1000
	// mostDeleted bounds the deleted keys that are in memory for a request.
	mostDeleted = 100_000
	// existTogether is the number of keys that a transaction looks for; etcd allows 128 by default.
	existTogether = 100
	// eventsTime bounds the time in which etcd sends the events of its history.
	eventsTime = 20 * time.Second
	// eventsAsked is the time between two questions of whether etcd has sent all of them.
	eventsAsked = 50 * time.Millisecond
	// eventsTries is the number of times that events are read again because etcd compacted its history meanwhile.
	eventsTries = 3
)

// pastBounds are the newest revision of etcd, and the oldest one that can be read.
type pastBounds struct{ newest, compacted uint64 }

// pastState is a revision of a key, with its value unless it is a deletion.
type pastState struct {
	store.PastRevision
	value []byte
}

// History implements store.Historian as far as etcd has not compacted its history. etcd knows neither times nor users. The
// time of a revision is the newest one in the managed fields of its object.
func (r *resourceStorage) History(ctx context.Context, key string, before uint64, limit int) (store.PastPage, error) {
	prepared, err := r.prepared(key)
	if err != nil {
		return store.PastPage{}, err
	}
	bounds, err := r.bounds(ctx)
	if err != nil {
		return store.PastPage{}, err
	}
	states, more, err := r.states(ctx, prepared, before, limit, bounds)
	if err != nil {
		return store.PastPage{}, historyError(prepared, err)
	}
	page := store.PastPage{More: more, Since: store.Point{Revision: bounds.compacted}}
	for _, state := range states {
		page.Revisions = append(page.Revisions, r.revisionOf(ctx, state))
	}
	return page, nil
}

// revisionOf returns a state with its object, nil if that cannot be read.
func (r *resourceStorage) revisionOf(ctx context.Context, state pastState) store.PastRevision {
	if state.Deleted {
		return state.PastRevision
	}
	if object, err := r.objectOf(ctx, state.Key, state.value, state.Revision); err == nil {
		state.Object, state.Time = object, writtenAt(object, state.Previous == 0)
	}
	return state.PastRevision
}

// states returns at most limit states of a key below a revision, 0 being none, the newest first. The life of the object that
// exists then is read revision by revision, and what was before it from the events of etcd.
func (r *resourceStorage) states(
	ctx context.Context, key string, before uint64, limit int, bounds *pastBounds,
) (states []pastState, more bool, err error) {
	at := bounds.newest
	if before != 0 {
		at = min(at, before-1)
	}
	size := 0
	full := func() bool { return len(states) == limit || size > mostPastBytes }
	for at >= bounds.compacted {
		kv, err := r.getAt(ctx, key, at)
		if errors.Is(err, rpctypes.ErrCompacted) {
			bounds.compacted = max(bounds.compacted, at+1)
			return linked(states), false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if kv == nil {
			break
		}
		if full() {
			return linked(append(states, stateOf(key, kv)))[:len(states)], true, nil
		}
		size += len(kv.Value)
		states = append(states, stateOf(key, kv))
		at = uint64(kv.ModRevision) - 1
	}
	if at <= bounds.compacted {
		return linked(states), false, nil
	}
	older, cut, err := r.eventsOf(ctx, key, at, limit-len(states)+1, bounds)
	if err != nil {
		return nil, false, err
	}
	for _, state := range older {
		if full() {
			return linked(append(states, state))[:len(states)], true, nil
		}
		size += len(state.value)
		states = append(states, state)
	}
	return linked(states), cut, nil
}

// stateOf returns the state that a value of etcd is. Its Previous is 0 if it is that of a new object, and otherwise not known yet.
func stateOf(key string, kv *mvccpb.KeyValue) pastState {
	state := pastState{PastRevision: store.PastRevision{Key: key, Revision: uint64(kv.ModRevision)}, value: kv.Value}
	if kv.CreateRevision != kv.ModRevision {
		state.Previous = state.Revision - 1
	}
	return state
}

// linked sets the Previous of states, the newest first, to the revisions of the next ones. That of the last state is some
// revision before it, unless it created the object.
func linked(states []pastState) []pastState {
	for i := range states {
		if i+1 < len(states) && states[i].Previous != 0 {
			states[i].Previous = states[i+1].Revision
		}
	}
	return states
}

// eventsOf returns the last states of a key up to a revision, at most limit and one more, the newest first, with the state at
// the compacted revision. cut reports that there are older ones.
func (r *resourceStorage) eventsOf(
	ctx context.Context, key string, to uint64, limit int, bounds *pastBounds,
) (states []pastState, cut bool, err error) {
	size := 0
	begin := func() { states, cut, size = nil, false, 0 }
	add := func(state pastState) {
		states, size = append(states, state), size+len(state.value)
		for len(states) > limit || size > 2*mostPastBytes && len(states) > 2 {
			size -= len(states[0].value)
			states, cut = slices.Delete(states, 0, 1), true
		}
	}
	err = r.events(ctx, r.backend.root()+key, bounds, to, begin, func(e *clientv3.Event) error {
		if len(states) == 0 && !cut && e.PrevKv != nil {
			add(stateOf(key, e.PrevKv))
		}
		if e.Type != mvccpb.DELETE {
			add(stateOf(key, e.Kv))
			return nil
		}
		revision := uint64(e.Kv.ModRevision)
		add(pastState{PastRevision: store.PastRevision{Key: key, Revision: revision, Previous: revision - 1, Deleted: true}})
		return nil
	}, clientv3.WithPrevKV())
	slices.Reverse(states)
	return states, cut, err
}

// Past implements store.Historian. A time needs objects with managed fields, since etcd knows none.
func (r *resourceStorage) Past(ctx context.Context, key string, at store.Point, out runtime.Object) error {
	prepared, err := r.prepared(key)
	if err != nil {
		return err
	}
	revision := at.Revision
	if revision == 0 {
		if revision, err = r.revisionOfTime(ctx, prepared, at); err != nil {
			return err
		}
	}
	kv, err := r.getAt(ctx, prepared, revision)
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev) {
		return r.unreadable(ctx, at, revision)
	}
	if err != nil {
		return historyError(prepared, err)
	}
	if kv == nil {
		return storage.NewKeyNotFoundError(prepared, 0)
	}
	if err := runtime.SetZeroValue(out); err != nil {
		return err
	}
	return historyError(prepared, r.decode(ctx, prepared, kv.Value, uint64(kv.ModRevision), out))
}

// unreadable returns the error for a point at a revision that etcd has rejected.
func (r *resourceStorage) unreadable(ctx context.Context, at store.Point, revision uint64) error {
	bounds, err := r.bounds(ctx)
	switch {
	case err != nil:
		return err
	case revision > bounds.newest:
		return &store.FutureError{At: at, Newest: store.Point{Revision: bounds.newest}}
	}
	return &store.NotKeptError{At: at, Since: store.Point{Revision: max(bounds.compacted, revision+1)}}
}

// revisionOfTime returns the revision of an object at a time.
func (r *resourceStorage) revisionOfTime(ctx context.Context, key string, at store.Point) (uint64, error) {
	bounds, err := r.bounds(ctx)
	if err != nil {
		return 0, err
	}
	if now := time.Now(); at.Time.After(now) {
		return 0, &store.FutureError{At: at, Newest: store.Point{Revision: bounds.newest, Time: now.UTC()}}
	}
	var later store.PastRevision // the revision after the one that is looked at
	for before, read := uint64(0), 0; ; {
		states, more, err := r.states(ctx, key, before, 50, bounds)
		if err != nil {
			return 0, historyError(key, err)
		}
		for _, state := range states {
			revision := r.revisionOf(ctx, state)
			switch {
			case revision.Deleted:
			case revision.Time.IsZero():
				return 0, noTimes("revision %d has no managed fields from which its time is known", revision.Revision)
			case !revision.Time.After(at.Time) && later.Deleted:
				return 0, noTimes("the object may have been deleted by then, at revision %d", later.Revision)
			case !revision.Time.After(at.Time):
				return revision.Revision, nil
			}
			later, before = revision, revision.Revision
		}
		if read += len(states); more && len(states) > 0 && read >= mostTimed {
			return 0, noTimes("the newest %d revisions are all later", read)
		}
		switch {
		case more && len(states) > 0:
		case later.Revision == 0:
			return 0, storage.NewKeyNotFoundError(key, 0)
		default:
			return 0, &store.NotKeptError{At: at, Since: store.Point{Revision: later.Revision, Time: later.Time}}
		}
	}
}

// noTimes returns the error for a time that cannot be converted to a revision.
func noTimes(format string, args ...any) error {
	return apierrors.NewBadRequest("etcd does not record the times of writes: " + fmt.Sprintf(format, args...) + ": use a revision")
}

// RevisionAt implements store.Historian. etcd records no times of revisions.
func (r *resourceStorage) RevisionAt(ctx context.Context, at store.Point) (uint64, error) {
	bounds, err := r.bounds(ctx)
	switch {
	case err != nil:
		return 0, err
	case at.Revision > bounds.newest, at.Revision == 0 && at.Time.After(time.Now()):
		return 0, &store.FutureError{At: at, Newest: store.Point{Revision: bounds.newest}}
	case at.Revision == 0:
		return 0, noTimes("a list of the past needs one")
	case at.Revision < bounds.compacted:
		return 0, &store.NotKeptError{At: at, Since: store.Point{Revision: bounds.compacted}}
	}
	return at.Revision, nil
}

// PastList implements store.Historian. It reaches as far back as lists do.
func (r *resourceStorage) PastList(
	ctx context.Context, prefix string, at store.Point, predicate storage.SelectionPredicate, list runtime.Object,
) error {
	revision, err := r.RevisionAt(ctx, at)
	if err != nil {
		return err
	}
	predicate.Limit, predicate.Continue = 0, ""
	return r.GetList(ctx, prefix, storage.ListOptions{
		ResourceVersion: strconv.FormatUint(revision, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Predicate: predicate, Recursive: true,
	}, list)
}

// Deletions implements store.Historian by the events of etcd.
func (r *resourceStorage) Deletions(ctx context.Context, prefix string, before uint64, limit int) (store.PastPage, error) {
	if err := r.answered(); err != nil {
		return store.PastPage{}, err
	}
	prepared, err := storage.PrepareKey(r.resource.Prefix+"/", prefix, true)
	if err != nil {
		return store.PastPage{}, err
	}
	bounds, err := r.bounds(ctx)
	if err != nil {
		return store.PastPage{}, err
	}
	deleted, err := r.deleted(ctx, r.backend.root()+prepared, bounds)
	if err != nil {
		return store.PastPage{}, historyError(prepared, err)
	}
	deleted = slices.DeleteFunc(deleted, func(d pastState) bool { return before != 0 && d.Revision >= before })
	page, size := store.PastPage{Since: store.Point{Revision: bounds.compacted}}, 0
	for together := range slices.Chunk(deleted, existTogether) {
		gone, err := r.gone(ctx, together)
		if err != nil {
			return store.PastPage{}, historyError(prepared, err)
		}
		for _, d := range gone {
			if len(page.Revisions) == limit || size > mostPastBytes {
				page.More = true
				return page, nil
			}
			last, err := r.getAt(ctx, d.Key, d.Revision-1)
			if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				return store.PastPage{}, historyError(d.Key, err)
			}
			if last != nil {
				d.Previous, size = uint64(last.ModRevision), size+len(last.Value)
				if object, err := r.objectOf(ctx, d.Key, last.Value, d.Previous); err == nil {
					d.Object = object
				}
			}
			page.Revisions = append(page.Revisions, d.PastRevision)
		}
	}
	return page, nil
}

// deleted returns the last deletion of each key below a prefix since the compaction, the newest first.
func (r *resourceStorage) deleted(ctx context.Context, prefix string, bounds *pastBounds) ([]pastState, error) {
	root := r.backend.root()
	last := map[string]uint64{}
	err := r.events(ctx, prefix, bounds, bounds.newest, func() { clear(last) }, func(e *clientv3.Event) error {
		last[strings.TrimPrefix(string(e.Kv.Key), root)] = uint64(e.Kv.ModRevision)
		if len(last) > mostDeleted {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
				"more than %d objects have been deleted since revision %d: ask for the deleted ones of a namespace", mostDeleted, bounds.compacted))
		}
		return nil
	}, clientv3.WithPrefix(), clientv3.WithFilterPut())
	if err != nil {
		return nil, err
	}
	all := make([]pastState, 0, len(last))
	for key, revision := range last {
		all = append(all, pastState{PastRevision: store.PastRevision{Key: key, Revision: revision, Previous: revision - 1, Deleted: true}})
	}
	slices.SortFunc(all, func(a, b pastState) int {
		if a.Revision != b.Revision {
			return int(int64(b.Revision) - int64(a.Revision))
		}
		return strings.Compare(a.Key, b.Key) // of one transaction
	})
	return all, nil
}

// gone returns the deletions of keys that do not exist now.
func (r *resourceStorage) gone(ctx context.Context, deleted []pastState) ([]pastState, error) {
	root := r.backend.root()
	operations := make([]clientv3.Op, len(deleted))
	for i, d := range deleted {
		operations[i] = clientv3.OpGet(root+d.Key, clientv3.WithCountOnly())
	}
	var gone []pastState
	response, err := r.backend.client.Txn(ctx).Then(operations...).Commit()
	if err == nil {
		for i, answer := range response.Responses {
			if answer.GetResponseRange().GetCount() == 0 {
				gone = append(gone, deleted[i])
			}
		}
		return gone, nil
	}
	if !unsupported(err) {
		return nil, err
	}
	for _, d := range deleted {
		kv, err := r.backend.gets.get(ctx, root+d.Key)
		if err != nil {
			return nil, err
		}
		if kv == nil {
			gone = append(gone, d)
		}
	}
	return gone, nil
}

// events calls see for the events of a key or a prefix above the compacted revision up to another, in their order. It calls begin
// before the first one, and again if it has to read them anew, because etcd has compacted its history meanwhile: then it raises
// the bound.
func (r *resourceStorage) events(
	ctx context.Context, key string, bounds *pastBounds, to uint64, begin func(), see func(*clientv3.Event) error,
	options ...clientv3.OpOption,
) error {
	for range eventsTries {
		begin()
		compacted, err := r.eventsAbove(ctx, key, bounds.compacted, to, see, options...)
		if compacted <= bounds.compacted {
			return err
		}
		bounds.compacted = compacted
	}
	return apierrors.NewServerTimeout(r.resource.Resource, "read the history of", 1)
}

// eventsAbove is events, once. It returns the newer compacted revision if etcd has compacted the history.
func (r *resourceStorage) eventsAbove(
	ctx context.Context, key string, compacted, to uint64, see func(*clientv3.Event) error, options ...clientv3.OpOption,
) (newer uint64, err error) {
	if compacted >= to {
		return 0, nil
	}
	// A stream of its own is not held up by other watches, and answers questions for the progress of this one.
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "annex-history", rand.Text()), eventsTime)
	defer cancel()
	slow := func() error {
		switch cause := ctx.Err(); {
		case cause == nil:
			return ErrClosed
		case !errors.Is(cause, context.DeadlineExceeded):
			return cause
		}
		return apierrors.NewTimeoutError(fmt.Sprintf("etcd has not sent the events of its history within %s", eventsTime), 1)
	}
	options = append(options, clientv3.WithRev(int64(compacted)+1), clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	watch := r.backend.client.Watch(ctx, key, options...)
	ask := time.NewTicker(eventsAsked)
	defer ask.Stop()
	created := false
	for {
		select {
		case response, ok := <-watch:
			if !ok {
				return 0, slow()
			}
			if response.CompactRevision != 0 {
				return uint64(response.CompactRevision), nil
			}
			if err := response.Err(); err != nil {
				return 0, err
			}
			created = created || response.Created
			for _, e := range response.Events {
				if uint64(e.Kv.ModRevision) > to {
					return 0, nil
				}
				if err := see(e); err != nil {
					return 0, err
				}
			}
			if response.IsProgressNotify() && uint64(response.Header.Revision) >= to {
				return 0, nil
			}
		case <-ask.C:
			if !created {
				continue
			}
			if err := r.backend.client.RequestProgress(ctx); err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, slow()
		}
	}
}

// bounds returns the revisions between which etcd can be read. The compactor of servers records the oldest one, but etcd may
// be compacted by others, too: then it is found by halves.
func (r *resourceStorage) bounds(ctx context.Context) (*pastBounds, error) {
	if err := r.answered(); err != nil {
		return nil, err
	}
	noted, err := r.backend.client.Get(ctx, compactRevKey)
	if err != nil {
		return nil, fmt.Errorf("read the bounds of etcd's history: %w", err)
	}
	newest, recorded := uint64(noted.Header.Revision), uint64(1)
	for _, kv := range noted.Kvs {
		if n, err := strconv.ParseUint(string(kv.Value), 10, 64); err == nil && n > 0 && n <= newest {
			recorded = n
		}
	}
	compacted := func(revision uint64) (bool, error) {
		_, err := r.backend.client.Get(ctx, compactRevKey, clientv3.WithRev(int64(revision)))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read the bounds of etcd's history: %w", err)
		}
		return false, nil
	}
	// All revisions below low are compacted, and high is not.
	low, high := uint64(1), newest
	for _, look := range []uint64{recorded, recorded - 1} {
		if look < low || look >= high {
			continue
		}
		gone, err := compacted(look)
		if err != nil {
			return nil, err
		}
		if gone {
			low = look + 1
		} else {
			high = look
		}
	}
	for low < high {
		middle := low + (high-low)/2
		gone, err := compacted(middle)
		if err != nil {
			return nil, err
		}
		if gone {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return &pastBounds{newest: newest, compacted: high}, nil
}

// getAt returns the value of a key at a revision, nil if there was none.
func (r *resourceStorage) getAt(ctx context.Context, key string, revision uint64) (*mvccpb.KeyValue, error) {
	response, err := r.backend.client.Get(ctx, r.backend.root()+key, clientv3.WithRev(int64(revision)))
	if err != nil || len(response.Kvs) == 0 {
		return nil, err
	}
	return response.Kvs[0], nil
}

// objectOf returns the object of a stored value.
func (r *resourceStorage) objectOf(ctx context.Context, key string, stored []byte, revision uint64) (runtime.Object, error) {
	object := r.resource.New()
	return object, r.decode(ctx, key, stored, revision, object)
}

func (r *resourceStorage) decode(ctx context.Context, key string, stored []byte, revision uint64, out runtime.Object) error {
	data, _, err := r.reader.transformer.TransformFromStorage(ctx, stored, r.backend.ValueContext(key))
	if err != nil {
		return storage.NewInternalError(fmt.Errorf("decrypt %s at revision %d: %w", key, revision, err))
	}
	return r.reader.decoder.Decode(data, out, int64(revision))
}

// writtenAt returns the newest time in the managed fields of an object, the zero time if there is none. A new object has the
// time of its creation instead.
func writtenAt(object runtime.Object, isNew bool) time.Time {
	var newest time.Time
	m, err := meta.Accessor(object)
	if err != nil {
		return newest
	}
	for _, entry := range m.GetManagedFields() {
		if entry.Time != nil && entry.Time.After(newest) {
			newest = entry.Time.UTC()
		}
	}
	if newest.IsZero() && isNew {
		newest = m.GetCreationTimestamp().UTC()
	}
	return newest
}

// historyError adds the operation to an error; those for clients stay as they are.
func historyError(key string, err error) error {
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return fmt.Errorf("read the history of %s: %w", key, err)
}
