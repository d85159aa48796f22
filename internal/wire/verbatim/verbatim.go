// Package verbatim determines which stored objects are, byte for byte, the JSON that clients receive, except for the
// resource version, which is not stored. Such objects need neither be decoded nor encoded, and no copy of their
// encoding must be kept. Nearly every object in its storage version is such an object. An object that was stored by a
// program with other defaults or other fields is not.
//
// The package does not read the storage. A storage asks a Form about each object and keeps the resulting Fit.
package verbatim

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Form is the JSON form of the objects of a resource in their storage version. Its methods may be called concurrently.
type Form struct {
	begin  []byte
	skip   int
	encode func(runtime.Object) ([]byte, error)
	item   func(object runtime.Object, whole []byte) ([]byte, error)

	mu   sync.Mutex
	fits map[int]*Fit // by the position of the resource version
}

// NewForm returns a form. Values that are stored in its version begin with begin. List items lack the first skip bytes
// of it; a brace takes their place.
//
// encode returns the encoding of a complete object, with a line break at its end, and must not change the object. item
// returns the list item for an object whose stored bytes do not fit; whole is the result of encode for that object, nil
// if encode was not called.
func NewForm(
	begin []byte,
	skip int,
	encode func(runtime.Object) ([]byte, error),
	item func(object runtime.Object, whole []byte) ([]byte, error),
) *Form {
	return &Form{begin: begin, skip: skip, encode: encode, item: item, fits: map[int]*Fit{}}
}

// Begins reports whether a stored value may be in the form's version.
func (f *Form) Begins(stored []byte) bool { return bytes.HasPrefix(stored, f.begin) }

// Fit is the knowledge about a stored object in a form: the position of the resource version, or that the stored bytes
// do not fit. It is shared by all objects with the same position.
type Fit struct {
	form *Form
	at   int // position of the resource version; 0 if the bytes do not fit
}

// Unfit returns the fit of objects whose stored bytes cannot be served. They must be decoded and encoded.
func (f *Form) Unfit() *Fit { return f.fit(0) }

// fit returns the fit with the resource version at a position.
func (f *Form) fit(at int) *Fit {
	f.mu.Lock()
	defer f.mu.Unlock()
	fit := f.fits[at]
	if fit == nil {
		fit = &Fit{f, at}
		f.fits[at] = fit
	}
	return fit
}

// Of reports whether a fit belongs to a form. A nil fit belongs to none.
func (f *Fit) Of(form *Form) bool { return f != nil && f.form == form }

// Fits reports whether the stored bytes are the JSON that clients receive.
func (f *Fit) Fits() bool { return f.at > 0 }

// Piece returns the piece of a stored object that fits.
func (f *Fit) Piece(stored []byte, revision uint64) Piece {
	return Piece{stored: stored, from: int32(f.form.skip), at: int32(f.at), revision: revision}
}

var metadataName = []byte(`"metadata":`)

// Metadata returns the metadata of a stored object that fits, if it is the first field after apiVersion and kind.
// Otherwise it returns the zero Piece.
func (f *Fit) Metadata(stored []byte, revision uint64) Piece {
	from := len(f.form.begin) + len(metadataName)
	if f.at <= from || !bytes.HasPrefix(stored[len(f.form.begin):], metadataName) {
		return Piece{}
	}
	length := objectLength(stored[from:])
	if f.at >= from+length { // the resource version belongs to another object
		return Piece{}
	}
	return Piece{stored: stored[from : from+length], at: int32(f.at - from), revision: revision}
}

var finalizersName = []byte(`"finalizers":`)

// Identity returns the name and UID of a stored object that fits and has no finalizers. It reads only the beginning of
// the metadata and returns false if that does not suffice. It relies on the encoding of encoding/json: in a stored
// object that fits, letters are not escaped and the fields are in the order of ObjectMeta.
func (f *Fit) Identity(stored []byte) (name, uid string, ok bool) {
	if !f.Fits() || bytes.Contains(stored, finalizersName) {
		return "", "", false
	}
	rest, ok := bytes.CutPrefix(stored[len(f.form.begin):], metadataName)
	for sign := byte('{'); ok; sign = ',' {
		var key, value []byte
		if key, rest, ok = quoted(rest, sign); !ok {
			break
		}
		if value, rest, ok = quoted(rest, ':'); !ok {
			break
		}
		switch string(key) {
		case "name":
			name = string(value)
		case "uid":
			if name == "" {
				return "", "", false
			}
			return name, string(value), true
		case "generateName", "namespace", "selfLink":
		default:
			return "", "", false
		}
	}
	return "", "", false
}

// quoted returns the string after a sign at the beginning of json, and the rest. It returns false for a string with
// escapes.
func quoted(json []byte, sign byte) (text, rest []byte, ok bool) {
	if len(json) < 2 || json[0] != sign || json[1] != '"' {
		return nil, nil, false
	}
	text, rest, ok = bytes.Cut(json[2:], []byte(`"`))
	return text, rest, ok && bytes.IndexByte(text, '\\') < 0
}

// objectLength returns the length of the object at the beginning of valid JSON; 0 if there is no object.
func objectLength(json []byte) int {
	depth := 0
	for i := 0; i < len(json); i++ {
		switch json[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			for i++; i < len(json) && json[i] != '"'; i++ {
				if json[i] == '\\' {
					i++
				}
			}
		}
		if depth == 0 {
			return 0
		}
	}
	return 0
}

// Look encodes an object and compares the encoding with the stored bytes. The resulting fit holds for these bytes at
// any revision. whole is the encoding of the object.
func (f *Form) Look(object runtime.Object, stored []byte, revision uint64) (fit *Fit, whole []byte, err error) {
	if whole, err = f.encode(object); err != nil {
		return nil, nil, err
	}
	version := appendVersion(nil, revision)
	at := bytes.Index(whole, version)
	if at <= f.skip || len(whole) != len(stored)+len(version) || !bytes.Equal(whole[:at], stored[:at]) ||
		!bytes.Equal(whole[at+len(version):], stored[at:]) {
		at = 0
	}
	return f.fit(at), whole, nil
}

// Item returns the list item for an object whose stored bytes do not fit. whole is the result of Look, nil if Look was
// not called. The item must not be changed.
func (f *Form) Item(object runtime.Object, whole []byte) ([]byte, error) {
	return f.item(object, whole)
}

func appendVersion(to []byte, revision uint64) []byte {
	to = append(to, `"resourceVersion":"`...)
	to = strconv.AppendUint(to, revision, 10)
	return append(to, `",`...)
}

// Written receives the response of a write from the storage.
type Written struct {
	// Form is the form of the response.
	Form *Form

	revision uint64
	json     []byte
	before   Piece
}

type writtenKey struct{}

// WithWritten returns a context in which the storage sets w during a write.
func WithWritten(ctx context.Context, w *Written) context.Context {
	return context.WithValue(ctx, writtenKey{}, w)
}

// WrittenIn returns the Written of a context; nil if no response is requested.
func WrittenIn(ctx context.Context) *Written {
	w, _ := ctx.Value(writtenKey{}).(*Written)
	return w
}

// Set sets the encoded object at a revision. A later call replaces it: the last stored object becomes the response.
func (w *Written) Set(revision uint64, json []byte) { w.revision, w.json = revision, json }

// SetBefore sets the object before a change. Its bytes are read only if Before is called.
func (w *Written) SetBefore(piece Piece) { w.before = piece }

// Before returns the encoded object before the change; nil if it is unknown or does not have object's resource version.
func (w *Written) Before(object runtime.Object) []byte {
	if m, ok := object.(metav1.Object); !ok || w.before.IsZero() || w.before.revision == 0 ||
		m.GetResourceVersion() != strconv.FormatUint(w.before.revision, 10) {
		return nil
	}
	return w.before.Whole()
}

// Of returns the encoded object that was set for the object's resource version; nil if there is none. The check is
// necessary because a request may also write other objects.
func (w *Written) Of(object runtime.Object) []byte {
	m, ok := object.(metav1.Object)
	if w.json == nil || !ok || m.GetResourceVersion() != strconv.FormatUint(w.revision, 10) {
		return nil
	}
	return w.json
}

// Items are the encoded items of a list. They must not be used concurrently. Items that implement io.Closer must be
// closed once they are no longer needed.
type Items interface {
	Len() int
	// Size returns the approximate number of bytes that Append appends. It is exact if a Maker with a Sizing was used.
	Size(i int) int
	// Append appends an item. It may have to encode the item first.
	Append(to []byte, i int) ([]byte, error)
}

// Close closes items that implement io.Closer. It does nothing for other items and for nil.
func Close(items Items) {
	if closer, ok := items.(io.Closer); ok {
		_ = closer.Close() // items are read only, so closing them cannot fail
	}
}

// Maker makes list items from objects if clients do not receive the objects themselves.
type Maker struct {
	// Row makes one item.
	Row Row
	// Early makes items while the list is read, as many as there is room for. If one of these cannot be made, the
	// request fails with an error instead of a truncated list.
	Early bool
	// Sizing, unless it is zero, requires the sizes of all items to be known when the list has been read. An item whose
	// size the storage does not remember is then made once to measure it, as with Early.
	Sizing Sizing
}

// Sizing identifies a way of making items whose sizes depend only on the stored objects, so that a storage may remember
// the sizes. Zero is none.
type Sizing uint32

var sizings atomic.Uint32

// NewSizing returns a sizing that is unique in the process.
func NewSizing() Sizing { return Sizing(sizings.Add(1)) }

// Row appends the item for an object, for example a row of a table. object reads the object on demand; the object is
// shared and must not be changed. metadata is the object's ObjectMeta as JSON; zero if it is unknown.
type Row func(to []byte, object func() (runtime.Object, error), metadata Piece) ([]byte, error)

// Pieces are items that are encoded already.
type Pieces []Piece

// Len implements Items.
func (p Pieces) Len() int { return len(p) }

// Size implements Items.
func (p Pieces) Size(i int) int { return p[i].Len() }

// Append implements Items. The error is always nil.
func (p Pieces) Append(to []byte, i int) ([]byte, error) { return p[i].Append(to), nil }

// Piece is an object of a list as JSON. A piece of a stored object refers to the stored bytes instead of a copy.
type Piece struct {
	stored   []byte
	revision uint64
	from, at int32
}

// Encoded returns a piece for an encoded item.
func Encoded(item []byte) Piece { return Piece{stored: item} }

// Len returns the largest number of bytes that Append may append.
func (p Piece) Len() int {
	if p.at == 0 {
		return len(p.stored)
	}
	const longest = len(`"resourceVersion":"18446744073709551615",`)
	return len(p.stored) - int(p.from) + 1 + longest
}

// Append appends the list item.
func (p Piece) Append(to []byte) []byte {
	if p.at == 0 {
		return append(to, p.stored...)
	}
	if p.from > 0 {
		to = append(to, '{')
	}
	to = append(to, p.stored[p.from:p.at]...)
	to = appendVersion(to, p.revision)
	return append(to, bytes.TrimSuffix(p.stored[p.at:], []byte("\n"))...)
}

// Whole returns the complete object with a line break at its end. The piece must be made from a stored object.
func (p Piece) Whole() []byte { return p.AppendWhole(make([]byte, 0, p.Len()+int(p.from))) }

// AppendWhole appends the result of Whole.
func (p Piece) AppendWhole(to []byte) []byte {
	to = append(to, p.stored[:p.at]...)
	to = appendVersion(to, p.revision)
	return append(to, p.stored[p.at:]...)
}

// IsZero reports whether p is the zero Piece.
func (p Piece) IsZero() bool { return p.stored == nil }
