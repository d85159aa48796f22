// Package verbatim finds out which stored objects are, byte for byte, what clients get but for the resource version,
// which is not stored: those need neither be decoded nor encoded, and no copy of what they are encoded to be kept. That is
// nearly every object in the version that it is stored in; one that was stored by a program with other defaults, or with
// other fields, is not.
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

// Form is how clients get the objects of a resource as JSON, in the version that they are stored in. Its methods may be
// called concurrently.
type Form struct {
	begin  []byte
	skip   int
	encode func(runtime.Object) ([]byte, error)
	item   func(object runtime.Object, whole []byte) ([]byte, error)

	mu   sync.Mutex
	fits map[int]*Fit // by where the resource version belongs
}

// NewForm returns a form. What is stored in its version begins with begin, of which the first skip bytes are not in the
// items of lists, where a brace takes their place.
//
// encode returns a whole object, with a line break at its end, and must not change it. item returns one whose stored
// bytes are of no use as the item of a list; whole is what encode made of it, nil if that was not called.
func NewForm(
	begin []byte,
	skip int,
	encode func(runtime.Object) ([]byte, error),
	item func(object runtime.Object, whole []byte) ([]byte, error),
) *Form {
	return &Form{begin: begin, skip: skip, encode: encode, item: item, fits: map[int]*Fit{}}
}

// Begins says whether something stored may be of the form's version.
func (f *Form) Begins(stored []byte) bool { return bytes.HasPrefix(stored, f.begin) }

// Fit is what is known of a stored object and a form: where the resource version belongs, or that the bytes are not what
// clients get. It is shared by all objects of which that is true.
type Fit struct {
	form *Form
	at   int // no place if it is not above 0
}

// Unfit returns the fit of objects that are of use to a form as objects only: their stored bytes are not what clients get.
func (f *Form) Unfit() *Fit { return f.fit(0) }

// fit returns the fit of objects with the resource version at a place.
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

// Of says whether a fit, which may be nil, is of a form.
func (f *Fit) Of(form *Form) bool { return f != nil && f.form == form }

// Fits says whether stored bytes are what clients get.
func (f *Fit) Fits() bool { return f.at > 0 }

// Piece returns a stored object that fits as clients get it.
func (f *Fit) Piece(stored []byte, revision uint64) Piece {
	return Piece{stored: stored, from: int32(f.form.skip), at: int32(f.at), revision: revision}
}

var metadataName = []byte(`"metadata":`)

// Metadata returns the metadata of a stored object that fits, if they are its first field behind its kind; else nothing.
func (f *Fit) Metadata(stored []byte, revision uint64) Piece {
	from := len(f.form.begin) + len(metadataName)
	if f.at <= from || !bytes.HasPrefix(stored[len(f.form.begin):], metadataName) {
		return Piece{}
	}
	length := objectLength(stored[from:])
	if f.at >= from+length { // another object's resource version
		return Piece{}
	}
	return Piece{stored: stored[from : from+length], at: int32(f.at - from), revision: revision}
}

var finalizersName = []byte(`"finalizers":`)

// Identity returns the name and UID in the metadata of a stored object that fits and has no finalizers; false if that
// takes more than a look at the beginning of the metadata. What fits is what encoding/json writes, so that no letter is
// escaped and the fields are in the order of ObjectMeta's.
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

// quoted returns the string behind a sign that JSON begins with, and what follows it. It knows only strings without escapes.
func quoted(json []byte, sign byte) (text, rest []byte, ok bool) {
	if len(json) < 2 || json[0] != sign || json[1] != '"' {
		return nil, nil, false
	}
	text, rest, ok = bytes.Cut(json[2:], []byte(`"`))
	return text, rest, ok && bytes.IndexByte(text, '\\') < 0
}

// objectLength is how long the object is that valid JSON begins with; 0 if it begins with anything else.
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

// Look encodes an object and compares that with its stored bytes. The result is true of these bytes, at any revision. What
// was encoded comes back, too.
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

// Item returns an object whose bytes do not fit as the item of a list. whole is what Look returned, nil if it was
// not asked now. What is returned must not be changed.
func (f *Form) Item(object runtime.Object, whole []byte) ([]byte, error) {
	return f.item(object, whole)
}

func appendVersion(to []byte, revision uint64) []byte {
	to = append(to, `"resourceVersion":"`...)
	to = strconv.AppendUint(to, revision, 10)
	return append(to, `",`...)
}

// Written is what a write has stored, for its answer.
type Written struct {
	// Form is how the answer is written.
	Form *Form

	revision uint64
	json     []byte
	before   Piece
}

type writtenKey struct{}

// WithWritten returns a context in which a write of an object says how clients get it.
func WithWritten(ctx context.Context, w *Written) context.Context {
	return context.WithValue(ctx, writtenKey{}, w)
}

// WrittenIn returns what a write has to say; nil if it has not been asked.
func WrittenIn(ctx context.Context) *Written {
	w, _ := ctx.Value(writtenKey{}).(*Written)
	return w
}

// Set says what an object is at a revision. It replaces what was said before: what is stored at the end is answered.
func (w *Written) Set(revision uint64, json []byte) { w.revision, w.json = revision, json }

// SetBefore says what an object was before a change. What it is made of is not read unless it is asked for.
func (w *Written) SetBefore(piece Piece) { w.before = piece }

// Before returns the object that is changed as clients get it; nil if that is not known.
func (w *Written) Before(object runtime.Object) []byte {
	if m, ok := object.(metav1.Object); !ok || w.before.IsZero() || w.before.revision == 0 ||
		m.GetResourceVersion() != strconv.FormatUint(w.before.revision, 10) {
		return nil
	}
	return w.before.Whole()
}

// Of returns what was said about the revision that is an object's resource version; nil if nothing was. A request may write
// other objects on its way.
func (w *Written) Of(object runtime.Object) []byte {
	m, ok := object.(metav1.Object)
	if w.json == nil || !ok || m.GetResourceVersion() != strconv.FormatUint(w.revision, 10) {
		return nil
	}
	return w.json
}

// Items are the encoded items of a list. They are not for several goroutines at once. Items with a method Close of io.Closer have
// to be closed when they are not needed any more, and not before.
type Items interface {
	Len() int
	// Size is about how many bytes Append appends, and exactly how many if a Maker was asked for that.
	Size(i int) int
	// Append appends an item, which may have to be made of an object first.
	Append(to []byte, i int) ([]byte, error)
}

// Close closes items that have to be closed. It does nothing for others, and for nil.
func Close(items Items) {
	if closer, ok := items.(io.Closer); ok {
		_ = closer.Close() // what is read has no error to tell when it is let go
	}
}

// Maker makes the items of a list of its objects, where these are not what clients get.
type Maker struct {
	// Row makes one.
	Row Row
	// Early has items made while the list is read, as many as there is room for: one of these that cannot be made is an error
	// instead of a list.
	Early bool
	// Sizing has the sizes of all items known when the list has been read, unless it is zero. An item of which the storage does not
	// remember its size is made once for it. It implies Early for those.
	Sizing Sizing
}

// Sizing is a way to make items whose sizes depend on what is stored and on nothing else, so that a storage may remember them by
// it. Zero is none.
type Sizing uint32

var sizings atomic.Uint32

// NewSizing returns a sizing that no other of the process is equal to.
func NewSizing() Sizing { return Sizing(sizings.Add(1)) }

// Row appends what is made of an object, a row of a table say. The object is read when it is asked for, shared and must
// not be changed. metadata is the object's as JSON, of the type ObjectMeta; zero if that is not known.
type Row func(to []byte, object func() (runtime.Object, error), metadata Piece) ([]byte, error)

// Pieces are items of which nothing has to be made.
type Pieces []Piece

// Len implements Items.
func (p Pieces) Len() int { return len(p) }

// Size implements Items.
func (p Pieces) Size(i int) int { return p[i].Len() }

// Append implements Items. It never fails.
func (p Pieces) Append(to []byte, i int) ([]byte, error) { return p[i].Append(to), nil }

// Piece is an object of a list as JSON. It takes no memory but that of a struct if it is made of what is stored.
type Piece struct {
	stored   []byte
	revision uint64
	from, at int32
}

// Encoded returns a piece that is an encoded item.
func Encoded(item []byte) Piece { return Piece{stored: item} }

// Len is how many bytes Append appends at most.
func (p Piece) Len() int {
	if p.at == 0 {
		return len(p.stored)
	}
	const longest = len(`"resourceVersion":"18446744073709551615",`)
	return len(p.stored) - int(p.from) + 1 + longest
}

// Append appends the item.
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

// Whole returns the object as it is by itself, for a piece that is made of what is stored.
func (p Piece) Whole() []byte { return p.AppendWhole(make([]byte, 0, p.Len()+int(p.from))) }

// AppendWhole appends what Whole returns.
func (p Piece) AppendWhole(to []byte) []byte {
	to = append(to, p.stored[:p.at]...)
	to = appendVersion(to, p.revision)
	return append(to, p.stored[p.at:]...)
}

// IsZero says whether there is nothing in a piece.
func (p Piece) IsZero() bool { return p.stored == nil }
