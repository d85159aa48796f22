package mvcc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store"
)

// Create implements storage.Interface.
func (s *resourceStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.create(ctx, change{key: key, ttl: &ttl}, obj, out)
}

// CreateIf implements store.ConditionalWriter.
func (s *resourceStore) CreateIf(ctx context.Context, key string, obj, out runtime.Object, condition store.Unchanged) error {
	return s.create(ctx, change{key: key, ttl: new(uint64), within: s.keyspace, unchanged: condition}, obj, out)
}

// UpdateIf implements store.ConditionalWriter.
func (s *resourceStore) UpdateIf(
	ctx context.Context,
	key string,
	out runtime.Object,
	preconditions *storage.Preconditions,
	update store.ConditionalUpdate,
) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	st, err := s.current(ctx, key, false)
	if err != nil {
		return err
	}
	if err := preconditions.Check(key, st.object); err != nil {
		return err
	}
	var since uint64
	data, _, err := s.update(st, func(existing runtime.Object, meta storage.ResponseMeta) (updated runtime.Object, _ *uint64, err error) {
		updated, since, err = update(existing, meta)
		return updated, nil, err
	})
	switch {
	case err != nil:
		return err
	case st.revision > since:
		return store.ErrConcurrentWrite
	case !st.stale && bytes.Equal(data, st.data):
		return assignTo(out, st.stored.DeepCopyObject())
	}
	err = s.put(
		ctx,
		change{key: key, seen: st.revision, within: s.keyspace, unchanged: store.Unchanged{Since: since, Updates: true}},
		data,
		out,
	)
	if errors.Is(err, errConflict) {
		return store.ErrConcurrentWrite
	}
	return err
}

func (s *resourceStore) create(ctx context.Context, ch change, obj, out runtime.Object) error {
	key, err := s.key(ch.key, false)
	if err != nil {
		return err
	}
	ch.key = key
	if version, err := versioner.ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	data, err := s.encode(obj)
	if err != nil {
		return err
	}
	err = s.put(ctx, ch, data, out)
	if errors.Is(err, errConflict) {
		return storage.NewKeyExistsError(key, 0)
	}
	return err
}

// encode clears the fields of obj that are not stored and returns its encoding.
func (s *resourceStore) encode(obj runtime.Object) ([]byte, error) {
	if err := versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("prepare object for storage: %w", err)
	}
	return runtime.Encode(s.resource.Codec, obj)
}

// put writes encoded data and sets out, unless it is nil, to the stored object.
func (s *resourceStore) put(ctx context.Context, ch change, data []byte, out runtime.Object) error {
	var err error
	if ch.value, err = s.stored(ctx, ch.key, data); err != nil {
		return err
	}
	ch.user = s.writer(ctx)
	w, err := s.core.append(ctx, ch)
	if err != nil {
		return err
	}
	if out == nil {
		return s.core.awaitCommit(w)
	}
	if w.alone {
		// The journal's own goroutine is runnable, but would start the sync only when this goroutine waits.
		goruntime.Gosched()
	}
	// Decoding now uses the time of the sync, and saves the watchers from decoding. The same holds for encoding the
	// response.
	object, decodeErr := s.cacheWritten(w.version, data)
	result := verbatim.WriteResultFrom(ctx)
	var answer []byte
	if result != nil && decodeErr == nil {
		answer = s.answer(result.Encoding, w.version, object)
	}
	if err := s.core.awaitCommit(w); err != nil {
		s.core.decoded.detach(w.version)
		return err
	}
	if decodeErr != nil {
		return decodeErr
	}
	if answer != nil {
		result.Set(w.revision, answer)
		return s.copyTo(out, object) // callers that take the response hardly read out
	}
	return assignTo(out, object.DeepCopyObject())
}

// writer returns the name of the user of a request, if the history of the resource is kept.
func (s *resourceStore) writer(ctx context.Context) string {
	if !s.keyspace.attributed.Load() {
		return ""
	}
	user, ok := request.UserFrom(ctx)
	if !ok {
		return ""
	}
	return user.GetName()
}

// answer returns the response in an encoding for a version that is being written, or nil if the stored value cannot be
// served verbatim. Where encoding an object panics, encoding the response later panics again; a panic here would leave
// the write unsettled forever.
func (s *resourceStore) answer(encoding *verbatim.Encoding, v *version, object runtime.Object) (whole []byte) {
	defer func() {
		if recover() != nil {
			whole = nil
		}
	}()
	fragment, ok := s.compareVerbatim(encoding, v, object)
	if !ok {
		return nil
	}
	return fragment.Whole()
}

// state is the object that a writer decides upon.
type state struct {
	object   runtime.Object    // owned by the writer; nil if the object could not be read
	stored   runtime.Object    // the same object, shared and unchanged; nil if it was not read from the store
	data     []byte            // output of the codec
	revision uint64            // 0 if there is no object
	ttl      int64             // seconds left, 0 for no expiry
	stale    bool              // to be written even if the data stays the same
	response verbatim.Fragment // in the requested encoding, if that is known
	// current is set if the state was read from the store, so that an error about it is final. The suggestion of a
	// caller may be out of date.
	current bool
}

// current reads the state of a key.
func (s *resourceStore) current(ctx context.Context, key string, ignoreNotFound bool) (*state, error) {
	v, _ := s.core.get(key)
	if v.live() == 0 {
		if !ignoreNotFound {
			return nil, storage.NewKeyNotFoundError(key, 0)
		}
		empty := s.resource.New()
		return &state{object: empty, stored: s.resource.New(), current: true}, runtime.SetZeroValue(empty)
	}
	st, err := s.shared(ctx, v)
	if err != nil {
		return nil, err
	}
	if result := verbatim.WriteResultFrom(ctx); result != nil {
		st.response, _ = s.verbatim(result.Encoding, v)
	}
	st.object = st.stored.DeepCopyObject()
	return st, nil
}

// shared reads the state of an existing version. Its object is shared, not owned by the writer.
func (s *resourceStore) shared(ctx context.Context, v *version) (*state, error) {
	if err := holdObject(ctx, v, true); err != nil {
		return nil, err
	}
	data, stale, err := s.plain(ctx, v)
	if err != nil {
		return nil, internal(err)
	}
	stored := s.cached(v)
	if stored == nil {
		if stored, err = s.cacheDecoded(v, data); err != nil {
			return nil, err
		}
	}
	return &state{
		object:   stored,
		stored:   stored,
		data:     data,
		revision: v.revision,
		ttl:      s.core.secondsLeft(v),
		stale:    stale,
		current:  true,
	}, nil
}

// unread reads the state of an existing version as far as a deletion needs it: an *objects.Unread. If the stored value
// is known to be what clients receive, which only an earlier decoding can have established, the identity is read from
// its bytes without decoding.
func (s *resourceStore) unread(ctx context.Context, v *version) (*state, error) {
	if s.cached(v) == nil && v.size < largeObject {
		if match := v.match.Load(); match != nil && match.Exact() {
			data, err := s.core.bytes(v)
			if err != nil {
				return nil, internal(err)
			}
			if name, uid, ok := match.Identity(data); ok {
				read := func() (runtime.Object, error) { return s.cacheDecoded(v, data) }
				return &state{object: objects.NewUnread(name, types.UID(uid), false, read, s.resource.New), revision: v.revision, current: true}, nil
			}
		}
	}
	st, err := s.shared(ctx, v)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(st.stored)
	if err != nil {
		return nil, internal(err)
	}
	read := func() (runtime.Object, error) { return st.stored, nil }
	st.object = objects.NewUnread(m.GetName(), m.GetUID(), len(m.GetFinalizers()) > 0, read, s.resource.New)
	return st, nil
}

// secondsLeft returns the time to live of a version, rounded up; 0 means that the version does not expire.
func (c *Core) secondsLeft(v *version) int64 {
	if v.expires == 0 {
		return 0
	}
	left := fromNano(v.expires).Sub(c.clock.Now())
	return max(1, int64((left+time.Second-1)/time.Second))
}

// corrupt reads the state of a key for an unsafe deletion. It returns an error if the object is readable.
func (s *resourceStore) corrupt(ctx context.Context, key string) (*state, error) {
	v, _ := s.core.get(key)
	if v.live() == 0 {
		return nil, storage.NewKeyNotFoundError(key, 0)
	}
	// A cached decoded object is no evidence that the stored bytes can be decoded.
	data, _, err := s.plain(ctx, v)
	if err == nil {
		_, err = s.decode(data, v.revision)
	}
	switch {
	case err == nil:
		return nil, storage.NewInvalidObjError(key, "unsafe deletion is not allowed because the object is decodable from storage")
	case !isCorrupt(err):
		return nil, internal(err)
	}
	return &state{revision: v.revision, current: true}, nil
}

// suggested returns the state of an object that the caller believes to be current.
func (s *resourceStore) suggested(key string, suggestion runtime.Object) (*state, error) {
	revision, err := versioner.ObjectResourceVersion(suggestion)
	if err != nil {
		return nil, fmt.Errorf("couldn't get resource version: %w", err)
	}
	data, err := s.encode(suggestion.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	st := &state{object: suggestion.DeepCopyObject(), data: data, revision: revision}
	if v, _ := s.core.get(key); v.live() == revision && revision != 0 {
		st.ttl = s.core.secondsLeft(v)
	}
	return st, nil
}

// reread replaces a state that led to an error. If the state was current, or the store still has its revision, the
// error is final.
func reread(st *state, cause error, read func() (*state, error)) (*state, error) {
	if st.current {
		return nil, cause
	}
	fresh, err := read()
	if err != nil {
		return nil, err
	}
	if fresh.revision == st.revision {
		return nil, cause
	}
	return fresh, nil
}

// Delete implements storage.Interface.
func (s *resourceStore) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions,
) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(out); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	unsafe, unread := opts.ExpectTransformOrDecodeError && s.tellsCorrupt, objects.DeletedUnread(ctx)
	read := func() (*state, error) {
		switch {
		case unsafe:
			return s.corrupt(ctx, key)
		case unread:
			v, _ := s.core.get(key)
			if v.live() == 0 {
				return nil, storage.NewKeyNotFoundError(key, 0)
			}
			return s.unread(ctx, v)
		}
		return s.current(ctx, key, false)
	}
	var st *state
	if suggestion != nil && !unsafe {
		st, err = s.suggested(key, suggestion)
	} else {
		st, err = read()
	}
	for err == nil {
		if refusal := mayDelete(ctx, key, st, preconditions, validate); refusal != nil {
			st, err = reread(st, refusal, read)
			continue
		}
		var revision uint64
		revision, err = s.remove(ctx, key, st.revision)
		if errors.Is(err, errConflict) {
			st, err = read()
			continue
		}
		if err != nil || unsafe || unread {
			return err
		}
		return s.assignDeleted(out, st, revision)
	}
	return err
}

// assignDeleted sets out to the deleted object, with the revision of the deletion. It does not use st.object, which the
// callbacks may have changed.
func (s *resourceStore) assignDeleted(out runtime.Object, st *state, revision uint64) error {
	if st.stored == nil {
		deleted, err := s.decode(st.data, revision)
		if err != nil {
			return err
		}
		return assignTo(out, deleted)
	}
	deleted := st.stored.DeepCopyObject()
	if err := versioner.UpdateObject(deleted, revision); err != nil {
		return fmt.Errorf("set resource version %d: %w", revision, err)
	}
	return assignTo(out, deleted)
}

func mayDelete(
	ctx context.Context,
	key string,
	st *state,
	preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
) error {
	if preconditions != nil && *preconditions != (storage.Preconditions{}) {
		if err := preconditions.Check(key, st.object); err != nil {
			return err
		}
	}
	return validate(ctx, st.object)
}

// remove deletes the object at a revision and returns the revision of the deletion.
func (s *resourceStore) remove(ctx context.Context, key string, seen uint64) (uint64, error) {
	if seen == 0 {
		return 0, errConflict
	}
	w, err := s.core.append(ctx, change{key: key, seen: seen, delete: true, user: s.writer(ctx)})
	if err != nil {
		return 0, err
	}
	return w.revision, s.core.awaitCommit(w)
}

// GuaranteedUpdate implements storage.Interface.
//
// tryUpdate gets the remaining time to live in whole seconds. If it returns none, the object keeps its expiry.
func (s *resourceStore) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, suggestion runtime.Object,
) error {
	key, err := s.key(key, false)
	if err != nil {
		return err
	}
	if _, err := conversion.EnforcePtr(destination); err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	read := func() (*state, error) { return s.current(ctx, key, ignoreNotFound) }

	var st *state
	if !objects.IsNil(suggestion) {
		st, err = s.suggested(key, suggestion)
	} else {
		st, err = read()
	}
	for err == nil {
		if refusal := preconditions.Check(key, st.object); refusal != nil {
			st, err = reread(st, refusal, read)
			continue
		}
		if result := verbatim.WriteResultFrom(ctx); result != nil {
			result.SetPrevious(st.response)
		}
		var data []byte
		var ttl *uint64
		data, ttl, refusal := s.update(st, tryUpdate)
		if refusal != nil {
			st, err = reread(st, refusal, read)
			continue
		}
		if !st.stale && bytes.Equal(data, st.data) {
			// If the store holds this data, there is nothing to write.
			if !st.current {
				if st, err = read(); err != nil || !bytes.Equal(data, st.data) {
					continue
				}
			}
			if !st.stale {
				return assignTo(destination, st.stored.DeepCopyObject())
			}
		}
		err = s.put(ctx, change{key: key, seen: st.revision, ttl: ttl}, data, destination)
		if errors.Is(err, errConflict) {
			st, err = read()
			continue
		}
		return err
	}
	return err
}

// update calls tryUpdate and encodes the updated object.
func (s *resourceStore) update(st *state, tryUpdate storage.UpdateFunc) (data []byte, ttl *uint64, err error) {
	updated, ttl, err := tryUpdate(st.object, storage.ResponseMeta{TTL: st.ttl, ResourceVersion: st.revision})
	if err != nil {
		return nil, nil, err
	}
	if st.revision == 0 && ttl == nil {
		ttl = ptr.To[uint64](0)
	}
	data, err = s.encode(updated)
	return data, ttl, err
}
