package virtual

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"github.com/annexapi/annex/internal/base/objects"
)

// attempts bounds how often a write is decided anew because the source's object has changed.
const attempts = 10

// state is the object that a writer decides upon.
type state struct {
	object  runtime.Object // owned by the writer; empty if there is none
	version string         // the source's version
	// revision is 0 if there is no object.
	revision uint64
}

// current gets an object from the source.
func (m *Mirror) current(ctx context.Context, key string) (*state, error) {
	m.fillOnce(ctx)
	if err := m.refresh(ctx, key); err != nil {
		return nil, err
	}
	for {
		m.mu.Lock()
		var e entry
		if known := m.entries[key]; known != nil {
			e = *known
		}
		m.mu.Unlock()
		object := m.resource.New()
		if err := m.Interface.Get(ctx, key, storage.GetOptions{IgnoreNotFound: true}, object); err != nil {
			return nil, err
		}
		revision, err := m.Versioner().ObjectResourceVersion(object)
		if err != nil {
			return nil, m.broken("%s: %w", key, err)
		}
		if revision == e.revision {
			return &state{object: object.DeepCopyObject(), version: e.version, revision: revision}, nil
		}
	}
}

// write calls write and then gets the object from the source. It returns errChanged, without calling write, if the
// mirror no longer has the decided revision.
func (m *Mirror) write(ctx context.Context, key string, decided *state, write func() error) error {
	t, back, err := m.take(ctx, key)
	if err != nil {
		return err
	}
	defer back()
	if m.revisionOf(key) != decided.revision {
		return errChanged
	}
	if err := write(); err != nil {
		return err
	}
	return m.read(ctx, key, t)
}

// errChanged reports that the object has changed since the decision.
var errChanged = errors.New("the object has changed in the meantime")

func (m *Mirror) revisionOf(key string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[key]; e != nil {
		return e.revision
	}
	return 0
}

// forSource returns a copy of an object for the source, with the source's version.
func forSource(obj runtime.Object, version string) runtime.Object {
	object := obj.DeepCopyObject()
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	objects.Meta(object).SetResourceVersion(version)
	return object
}

// copyInto sets the struct that out points to.
func copyInto(out, obj runtime.Object) {
	reflect.ValueOf(out).Elem().Set(reflect.ValueOf(obj).Elem())
}

// Create implements storage.Interface.
func (m *Mirror) Create(ctx context.Context, key string, obj, out runtime.Object, _ uint64) error {
	if revision, err := m.Versioner().ObjectResourceVersion(obj); err == nil && revision != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	st, err := m.current(ctx, key)
	if err != nil {
		return err
	}
	if st.revision != 0 {
		return storage.NewKeyExistsError(key, 0)
	}
	err = m.create(ctx, key, st, obj)
	if err == errChanged {
		return storage.NewKeyExistsError(key, 0)
	}
	if err != nil {
		return err
	}
	return m.give(ctx, key, obj, out)
}

// create calls the source to create a missing object.
func (m *Mirror) create(ctx context.Context, key string, st *state, obj runtime.Object) error {
	if m.source.Create == nil {
		return apierrors.NewMethodNotSupported(m.kind.GroupResource(), "create")
	}
	object := forSource(obj, "")
	return m.write(ctx, key, st, func() error {
		err := m.call(ctx, "Create", func() error { return m.source.Create(ctx, object) })
		switch {
		case apierrors.IsAlreadyExists(err):
			return errChanged
		case err != nil:
			return m.unwritten("create", err)
		}
		return nil
	})
}

// give sets out, unless it is nil, to the object after a write, and warns the writer about metadata that the source did
// not keep.
func (m *Mirror) give(ctx context.Context, key string, sent, out runtime.Object) error {
	if out == nil {
		out = m.resource.New()
	}
	if err := m.Interface.Get(ctx, key, storage.GetOptions{}, out); err != nil {
		if storage.IsNotFound(err) {
			return m.broken("%s does not exist after it was written", key)
		}
		return err
	}
	for _, lost := range lostMetadata(sent, out) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s: the source of %s does not store the field", lost, m.kind.GroupResource()))
	}
	return nil
}

// lostMetadata returns the metadata fields that the client sent and the source did not keep.
func lostMetadata(sent, kept runtime.Object) (lost []string) {
	s, k := objects.Meta(sent), objects.Meta(kept)
	for _, part := range []struct {
		name string
		kept bool
	}{
		{"metadata.annotations", holds(k.GetAnnotations(), s.GetAnnotations())},
		{"metadata.finalizers", len(s.GetFinalizers()) == 0 || apiequality.Semantic.DeepEqual(s.GetFinalizers(), k.GetFinalizers())},
		{"metadata.labels", holds(k.GetLabels(), s.GetLabels())},
		{"metadata.ownerReferences", len(s.GetOwnerReferences()) == 0 ||
			apiequality.Semantic.DeepEqual(s.GetOwnerReferences(), k.GetOwnerReferences())},
	} {
		if !part.kept {
			lost = append(lost, part.name)
		}
	}
	return lost
}

func holds(all, some map[string]string) bool {
	for key, value := range some {
		if v, ok := all[key]; !ok || v != value {
			return false
		}
	}
	return true
}

// GuaranteedUpdate implements storage.Interface. Objects do not expire. Cached objects are not used, because the source
// may have changed them.
func (m *Mirror) GuaranteedUpdate(
	ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object,
) error {
	for range attempts {
		st, err := m.current(ctx, key)
		if err != nil {
			return err
		}
		if st.revision == 0 && !ignoreNotFound {
			return storage.NewKeyNotFoundError(key, 0)
		}
		if err := preconditions.Check(key, st.object); err != nil {
			return err
		}
		old := st.object.DeepCopyObject()
		updated, _, err := tryUpdate(st.object, storage.ResponseMeta{ResourceVersion: st.revision})
		if err != nil {
			return err
		}
		if st.revision == 0 {
			err = m.create(ctx, key, st, updated)
		} else {
			err = m.update(ctx, key, st, updated, old)
		}
		if err == nil {
			return m.give(ctx, key, updated, destination)
		}
		if err != errChanged {
			return err
		}
	}
	return m.tooBusy(key)
}

// update calls the source to update an object, if it has changed.
func (m *Mirror) update(ctx context.Context, key string, st *state, updated, old runtime.Object) error {
	equal, err := m.equal(updated, old)
	if err != nil {
		return m.broken("%s: %w", key, err)
	}
	if equal {
		return nil
	}
	if m.source.Update == nil {
		return apierrors.NewMethodNotSupported(m.kind.GroupResource(), "update")
	}
	object, previous := forSource(updated, st.version), forSource(old, st.version)
	return m.write(ctx, key, st, func() error {
		err := m.call(ctx, "Update", func() error { return m.source.Update(ctx, object, previous) })
		return m.changedOr("update", err)
	})
}

// changedOr returns errChanged if the source reports that the object has changed or is gone.
func (m *Mirror) changedOr(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return errChanged
	}
	return m.unwritten(verb, err)
}

// equal compares the encodings of two objects without their resource versions.
func (m *Mirror) equal(a, b runtime.Object) (bool, error) {
	var encoded [2][]byte
	for i, obj := range []runtime.Object{a, b} {
		object := shallow(obj)
		if err := m.Versioner().PrepareObjectForStorage(object); err != nil {
			return false, err
		}
		var err error
		if encoded[i], err = m.encode(object); err != nil {
			return false, err
		}
	}
	return bytes.Equal(encoded[0], encoded[1]), nil
}

// Delete implements storage.Interface. Every object can be decoded, so an unsafe deletion is an error.
func (m *Mirror) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions,
) error {
	if opts.ExpectTransformOrDecodeError {
		return storage.NewInvalidObjError(key, "unsafe deletion is not allowed because the object is decodable")
	}
	if m.source.Delete == nil {
		return apierrors.NewMethodNotSupported(m.kind.GroupResource(), "delete")
	}
	for range attempts {
		st, err := m.current(ctx, key)
		if err != nil {
			return err
		}
		if st.revision == 0 {
			return storage.NewKeyNotFoundError(key, 0)
		}
		if err := preconditions.Check(key, st.object); err != nil {
			return err
		}
		old := forSource(st.object, st.version)
		if err := validate(ctx, st.object.DeepCopyObject()); err != nil {
			return err
		}
		err = m.write(ctx, key, st, func() error {
			err := m.call(ctx, "Delete", func() error { return m.source.Delete(ctx, old) })
			return m.changedOr("delete", err)
		})
		if err == errChanged {
			continue
		}
		if err != nil {
			return err
		}
		return m.giveDeleted(st, out)
	}
	return m.tooBusy(key)
}

// giveDeleted sets out to the deleted object, with the mirror's revision: that of the deletion, or a later one.
func (m *Mirror) giveDeleted(st *state, out runtime.Object) error {
	if err := m.Versioner().UpdateObject(st.object, m.core.Revision()); err != nil {
		return m.broken("%w", err)
	}
	copyInto(out, st.object)
	return nil
}

// tooBusy returns the conflict of a write whose object keeps changing.
func (m *Mirror) tooBusy(key string) error {
	name := key[strings.LastIndexByte(key, '/')+1:]
	return apierrors.NewConflict(m.kind.GroupResource(), name, fmt.Errorf("the object changes too often: tried %d times", attempts))
}
