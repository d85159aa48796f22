package mvcc

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/verbatim"
)

// shape is what the objects of a list are to become.
type shape struct {
	form *verbatim.Form // of what is stored
	row  verbatim.Row   // nil if they are to be as they are in the form
}

// listed is an object of a list that is to be written: as little as there can be of it, for there may be very many, and
// of many lists at once. What it is made of stays whatever becomes of the version.
type listed struct {
	version *version // nil if value is the item
	value   *stored
}

// encodedItems are the items of a list, encoded when they are written.
type encodedItems struct {
	shape
	store  *resourceStore
	listed []listed
}

var _ verbatim.Items = (*encodedItems)(nil)

// Len implements verbatim.Items.
func (e *encodedItems) Len() int { return len(e.listed) }

// Size implements verbatim.Items.
func (e *encodedItems) Size(i int) int {
	const version = 50 // the resource version
	return len(e.listed[i].value.data) + version
}

// Append implements verbatim.Items.
func (e *encodedItems) Append(to []byte, i int) ([]byte, error) {
	v, value := e.listed[i].version, e.listed[i].value.data
	if v == nil {
		return append(to, value...), nil
	}
	fit, object := v.fit.Load(), runtime.Object(nil)
	if !fit.Of(e.form) { // another form has come in between
		var err error
		if object, err = e.store.readable(v, value); err != nil {
			return nil, err
		}
		if fit, _, err = e.form.Look(object, value, v.revision); err != nil {
			return nil, err
		}
	}
	if e.row == nil {
		if fit.Fits() {
			return fit.Piece(value, v.revision).Append(to), nil
		}
		item, err := e.form.Item(object, nil)
		return append(to, item...), err
	}
	return e.row(to, func() (runtime.Object, error) { return e.store.readable(v, value) }, fit.Metadata(value, v.revision))
}

// parts says what a list holds of each version, which is decoded first if it selects; nil if the object of all of them.
func (s *resourceStore) parts(as *shape, selects bool) func(*version) part {
	switch {
	case as == nil || s.resource.Transformer != nil:
		return nil
	case as.row != nil:
		return func(v *version) part {
			if value := v.value.Load(); value != nil && as.form.Begins(value.data) {
				return storedValue
			}
			return wholeObject
		}
	}
	return func(v *version) part {
		switch fit := v.fit.Load(); {
		case !fit.Of(as.form) || !fit.Fits():
			return wholeObject
		case v.value.Load() != nil:
			return storedValue
		case selects:
			return wholeObject
		}
		return readValue
	}
}

// known returns a version if its value is known to be all that an item is made of.
func (s *resourceStore) known(as shape, v *version) (listed, bool) {
	fit := v.fit.Load()
	if !fit.Of(as.form) || as.row == nil && !fit.Fits() {
		return listed{}, false
	}
	value := s.valueFor(as, v)
	return listed{v, value}, value != nil // decoding it says why
}

// valueFor returns the value of a version that an item is made of; nil if there is none. Rows are made of those in memory: others
// are decoded with each other.
func (s *resourceStore) valueFor(as shape, v *version) *stored {
	if as.row != nil {
		return v.value.Load()
	}
	return s.valueOf(v)
}

// listed returns a version, whose object has been read, and finds out whether an item can be made of its value.
func (s *resourceStore) listed(as shape, v *version, object runtime.Object) (listed, error) {
	value := s.valueFor(as, v)
	fit, whole, err := s.fitOf(as.form, v, value, object)
	switch {
	case err != nil:
		return listed{}, err
	case fit != nil && (as.row != nil || fit.Fits()):
		return listed{v, value}, nil
	}
	if as.row != nil {
		row, err := as.row(nil, func() (runtime.Object, error) { return object, nil }, verbatim.Piece{})
		return listed{value: &stored{data: row}}, err
	}
	item, err := as.form.Item(object, whole)
	return listed{value: &stored{data: item}}, err
}

// readable returns the object of a version whose value has been decoded before. It is kept only if there is room: a list of
// all objects would replace what others use.
func (s *resourceStore) readable(v *version, value []byte) (runtime.Object, error) {
	if object := s.cached(v); object != nil {
		return object, nil
	}
	object, err := s.decode(value, v.revision)
	if err != nil {
		return nil, err
	}
	s.core.decoded.attachIfRoom(v, &decoded{object: object, store: s})
	return object, nil
}
