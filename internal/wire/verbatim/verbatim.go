// Package verbatim determines which stored objects are, byte for byte, the JSON that clients receive, except for the
// resource version, which is not stored. Such objects need neither be decoded nor encoded, and no copy of their
// encoding must be kept. Nearly every object in its storage version is such an object. An object that was stored by a
// program with other defaults or other fields is not.
//
// The package does not read the storage. A storage compares each object with an Encoding and keeps the
// resulting Match.
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

// Encoding is the JSON encoding of the objects of a resource in their storage version. Its methods may be called
// concurrently.
type Encoding struct {
	prefix []byte
	skip   int
	encode func(runtime.Object) ([]byte, error)
	item   func(object runtime.Object, whole []byte) ([]byte, error)

	mu      sync.Mutex
	matches map[int]*Match // by the position of the resource version
}

// NewEncoding returns an encoding. Values that are stored in its version begin with prefix. List items lack the first skip
// bytes of it; a brace takes their place.
//
// encode returns the encoding of a complete object, with a line break at its end, and must not change the object. item
// returns the list item for an object whose stored bytes do not match; whole is the result of encode for that object, nil
// if encode was not called.
func NewEncoding(
	prefix []byte,
	skip int,
	encode func(runtime.Object) ([]byte, error),
	item func(object runtime.Object, whole []byte) ([]byte, error),
) *Encoding {
	return &Encoding{prefix: prefix, skip: skip, encode: encode, item: item, matches: map[int]*Match{}}
}

// HasPrefix reports whether a stored value may be in the encoding's version.
func (e *Encoding) HasPrefix(stored []byte) bool { return bytes.HasPrefix(stored, e.prefix) }

// Match is the result of comparing a stored object with its encoding: the position of the resource version, or a
// mismatch. It is shared by all objects with the same position.
type Match struct {
	encoding *Encoding
	position int // position of the resource version; 0 if the bytes do not match
}

// Mismatch returns the match of objects whose stored bytes cannot be served. They must be decoded and encoded.
func (e *Encoding) Mismatch() *Match { return e.match(0) }

// match returns the match with the resource version at a position.
func (e *Encoding) match(position int) *Match {
	e.mu.Lock()
	defer e.mu.Unlock()
	match := e.matches[position]
	if match == nil {
		match = &Match{e, position}
		e.matches[position] = match
	}
	return match
}

// BelongsTo reports whether a match belongs to an encoding. A nil match belongs to none.
func (m *Match) BelongsTo(encoding *Encoding) bool { return m != nil && m.encoding == encoding }

// Exact reports whether the stored bytes are the JSON that clients receive.
func (m *Match) Exact() bool { return m.position > 0 }

// Fragment returns the fragment of a stored object that matches.
func (m *Match) Fragment(stored []byte, revision uint64) Fragment {
	return Fragment{stored: stored, start: int32(m.encoding.skip), position: int32(m.position), revision: revision}
}

var metadataName = []byte(`"metadata":`)

// Metadata returns the metadata of a stored object that matches, if it is the first field after apiVersion and kind.
// Otherwise it returns the zero Fragment.
func (m *Match) Metadata(stored []byte, revision uint64) Fragment {
	from := len(m.encoding.prefix) + len(metadataName)
	if m.position <= from || !bytes.HasPrefix(stored[len(m.encoding.prefix):], metadataName) {
		return Fragment{}
	}
	length := objectLength(stored[from:])
	if m.position >= from+length { // the resource version belongs to another object
		return Fragment{}
	}
	return Fragment{stored: stored[from : from+length], position: int32(m.position - from), revision: revision}
}

var finalizersName = []byte(`"finalizers":`)

// Identity returns the name and UID of a stored object that matches and has no finalizers. It reads only the beginning of
// the metadata and returns false if that does not suffice. It relies on the encoding of encoding/json: in a stored
// object that matches, letters are not escaped and the fields are in the order of ObjectMeta.
func (m *Match) Identity(stored []byte) (name, uid string, ok bool) {
	if !m.Exact() || bytes.Contains(stored, finalizersName) {
		return "", "", false
	}
	rest, ok := bytes.CutPrefix(stored[len(m.encoding.prefix):], metadataName)
	for sign := byte('{'); ok; sign = ',' {
		var key, value []byte
		if key, rest, ok = cutString(rest, sign); !ok {
			break
		}
		if value, rest, ok = cutString(rest, ':'); !ok {
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

// cutString returns the string after a sign at the beginning of json, and the rest. It returns false for a string with
// escapes.
func cutString(json []byte, sign byte) (text, rest []byte, ok bool) {
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

// Compare encodes an object and compares the encoding with the stored bytes. The match holds for these bytes at
// any revision. whole is the encoding of the object.
func (e *Encoding) Compare(object runtime.Object, stored []byte, revision uint64) (match *Match, whole []byte, err error) {
	if whole, err = e.encode(object); err != nil {
		return nil, nil, err
	}
	version := appendVersion(nil, revision)
	at := bytes.Index(whole, version)
	if at <= e.skip || len(whole) != len(stored)+len(version) || !bytes.Equal(whole[:at], stored[:at]) ||
		!bytes.Equal(whole[at+len(version):], stored[at:]) {
		at = 0
	}
	return e.match(at), whole, nil
}

// Item returns the list item for an object whose stored bytes do not match. whole is the result of Compare, nil if
// Compare was not called. The item must not be changed.
func (e *Encoding) Item(object runtime.Object, whole []byte) ([]byte, error) {
	return e.item(object, whole)
}

func appendVersion(to []byte, revision uint64) []byte {
	to = append(to, `"resourceVersion":"`...)
	to = strconv.AppendUint(to, revision, 10)
	return append(to, `",`...)
}

// WriteResult receives the response of a write from the storage.
type WriteResult struct {
	// Encoding is the encoding of the response.
	Encoding *Encoding

	revision uint64
	json     []byte
	previous Fragment
}

type resultKey struct{}

// WithWriteResult returns a context in which the storage sets w during a write.
func WithWriteResult(ctx context.Context, w *WriteResult) context.Context {
	return context.WithValue(ctx, resultKey{}, w)
}

// WriteResultFrom returns the WriteResult of a context; nil if no response is requested.
func WriteResultFrom(ctx context.Context) *WriteResult {
	w, _ := ctx.Value(resultKey{}).(*WriteResult)
	return w
}

// Set sets the encoded object at a revision. A later call replaces it: the last stored object becomes the response.
func (w *WriteResult) Set(revision uint64, json []byte) { w.revision, w.json = revision, json }

// SetPrevious sets the object before a change. Its bytes are read only if Previous is called.
func (w *WriteResult) SetPrevious(fragment Fragment) { w.previous = fragment }

// Previous returns the encoded object before the change; nil if it is unknown or does not have object's resource version.
func (w *WriteResult) Previous(object runtime.Object) []byte {
	if m, ok := object.(metav1.Object); !ok || w.previous.IsZero() || w.previous.revision == 0 ||
		m.GetResourceVersion() != strconv.FormatUint(w.previous.revision, 10) {
		return nil
	}
	return w.previous.Whole()
}

// JSON returns the encoded object that was set for the object's resource version; nil if there is none. The check is
// necessary because a request may also write other objects.
func (w *WriteResult) JSON(object runtime.Object) []byte {
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
	// Eager makes items while the list is read, as many as there is room for. If one of these cannot be made, the
	// request fails with an error instead of a truncated list.
	Eager bool
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
type Row func(to []byte, object func() (runtime.Object, error), metadata Fragment) ([]byte, error)

// Fragments are items that are encoded already.
type Fragments []Fragment

// Len implements Items.
func (f Fragments) Len() int { return len(f) }

// Size implements Items.
func (f Fragments) Size(i int) int { return f[i].Len() }

// Append implements Items. The error is always nil.
func (f Fragments) Append(to []byte, i int) ([]byte, error) { return f[i].Append(to), nil }

// Fragment is an object of a list as JSON. A fragment of a stored object refers to the stored bytes instead of a copy.
type Fragment struct {
	stored          []byte
	revision        uint64
	start, position int32
}

// NewFragment returns a fragment for an encoded item.
func NewFragment(item []byte) Fragment { return Fragment{stored: item} }

// Len returns the largest number of bytes that Append may append.
func (f Fragment) Len() int {
	if f.position == 0 {
		return len(f.stored)
	}
	const longest = len(`"resourceVersion":"18446744073709551615",`)
	return len(f.stored) - int(f.start) + 1 + longest
}

// Append appends the list item.
func (f Fragment) Append(to []byte) []byte {
	if f.position == 0 {
		return append(to, f.stored...)
	}
	if f.start > 0 {
		to = append(to, '{')
	}
	to = append(to, f.stored[f.start:f.position]...)
	to = appendVersion(to, f.revision)
	return append(to, bytes.TrimSuffix(f.stored[f.position:], []byte("\n"))...)
}

// Whole returns the complete object with a line break at its end. The fragment must be made from a stored object.
func (f Fragment) Whole() []byte { return f.AppendWhole(make([]byte, 0, f.Len()+int(f.start))) }

// AppendWhole appends the result of Whole.
func (f Fragment) AppendWhole(to []byte) []byte {
	to = append(to, f.stored[:f.position]...)
	to = appendVersion(to, f.revision)
	return append(to, f.stored[f.position:]...)
}

// IsZero reports whether f is the zero Fragment.
func (f Fragment) IsZero() bool { return f.stored == nil }
