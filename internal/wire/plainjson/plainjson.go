// Package plainjson encodes and decodes Go values as JSON by plans that are made once for each type. Its results are
// those of encoding/json and sigs.k8s.io/json, byte for byte and field for field, in a third of their time.
//
// A plan does not cover everything, for example members that the type does not have. In such a case Append and Decode
// return false, and the caller must use the libraries. Encoder and Decoder fall back to the libraries themselves.
package plainjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Plans holds the plans of the types that have been used. Its methods may be called concurrently.
type Plans struct {
	made    sync.Map // *node by the reflect.Type of a struct; nil for a struct without a plan
	buffers sync.Pool

	mu sync.Mutex
	// compact holds the fields of managers whose encoding is known to equal their bytes.
	compact map[string]struct{}
	bytes   int
}

// New returns empty Plans.
func New() *Plans { return &Plans{} }

// kind is the way in which a value is encoded and decoded.
type kind uint8

const (
	library kind = iota // by the libraries
	text
	boolean
	signed
	unsigned
	record
	dictionary
	strings_ // a map[string]string
	list
	pointer
	moment  // a metav1.Time
	managed // a metav1.FieldsV1
)

// node is the plan of a type.
type node struct {
	kind   kind
	goType reflect.Type
	elem   *node // of a dictionary, list or pointer
	fields []field
	index  map[string]int // index in fields, by name
}

// field is a field of a struct, or of a struct that is embedded in it.
type field struct {
	name  string
	quote []byte // the quoted name with the colon
	index []int
	node  *node

	omitEmpty, omitZero bool
}

var (
	marshaler       = reflect.TypeFor[json.Marshaler]()
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	zeroer          = reflect.TypeFor[interface{ IsZero() bool }]()
)

// of returns the plan of a struct; nil if it has none.
func (p *Plans) of(t reflect.Type) *node {
	if made, ok := p.made.Load(t); ok {
		return made.(*node)
	}
	planner := planner{map[reflect.Type]*node{}}
	n := planner.plan(t)
	if n.kind != record {
		n = nil
	}
	made, _ := p.made.LoadOrStore(t, n)
	return made.(*node)
}

type planner struct{ made map[reflect.Type]*node }

func implements(t, what reflect.Type) bool {
	return t.Implements(what) || reflect.PointerTo(t).Implements(what)
}

func (p *planner) plan(t reflect.Type) *node {
	if n := p.made[t]; n != nil {
		return n
	}
	n := &node{goType: t}
	p.made[t] = n
	switch t {
	case reflect.TypeFor[metav1.Time]():
		n.kind = moment
		return n
	case reflect.TypeFor[metav1.FieldsV1]():
		n.kind = managed
		return n
	case reflect.TypeFor[json.Number]():
		return n
	case reflect.TypeFor[map[string]string]():
		n.kind = strings_
		return n
	}
	if t.Kind() == reflect.Pointer && t.Name() == "" {
		n.kind, n.elem = pointer, p.plan(t.Elem()) // its methods are those of the pointer's element
		return n
	}
	if implements(t, unmarshaler) || implements(t, marshaler) || implements(t, textMarshaler) || implements(t, textUnmarshaler) {
		return n
	}
	switch t.Kind() {
	case reflect.String:
		n.kind = text
	case reflect.Bool:
		n.kind = boolean
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.kind = signed
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n.kind = unsigned
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			n.kind, n.elem = list, p.plan(t.Elem())
		}
	case reflect.Map:
		if key := t.Key(); key.Kind() == reflect.String && key != reflect.TypeFor[json.Number]() && !implements(key, textMarshaler) &&
			!implements(key, textUnmarshaler) {
			n.kind, n.elem = dictionary, p.plan(t.Elem())
		}
	case reflect.Struct:
		if p.record(n, t, nil) && n.isIndexed() {
			n.kind = record
		}
	}
	return n
}

// isIndexed indexes the fields of a struct by name. It reports whether the names are unique; the libraries must choose
// between fields with the same name.
func (n *node) isIndexed() bool {
	n.index = make(map[string]int, len(n.fields))
	for i, f := range n.fields {
		n.index[f.name] = i
	}
	return len(n.index) == len(n.fields) && len(n.fields) <= mostFields
}

// mostFields is the largest number of fields of a struct with a plan.
const mostFields = 64

// record plans the fields of a struct, and reports whether it could.
func (p *planner) record(n *node, t reflect.Type, at []int) bool {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		if tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		index := append(at[:len(at):len(at)], i)
		switch {
		case f.Anonymous && (f.Type.Kind() == reflect.Pointer || !f.IsExported()):
			return false
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			if !p.record(n, f.Type, index) {
				return false
			}
			continue
		case !f.IsExported():
			continue
		}
		if name == "" {
			name = f.Name
		}
		a := field{name: name, quote: []byte(`"` + name + `":`), index: index}
		for option := range strings.SplitSeq(options, ",") {
			switch option {
			case "omitempty":
				a.omitEmpty = true
			case "omitzero":
				a.omitZero = true
			case "string":
				return false
			}
		}
		saysZero := implements(f.Type, zeroer) && f.Type != reflect.TypeFor[metav1.Time]()
		if !isPlainName(name) || a.omitZero && (saysZero || f.Type.Kind() == reflect.Interface) {
			return false
		}
		a.node = p.plan(f.Type)
		n.fields = append(n.fields, a)
	}
	return true
}

func isPlainName(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' && c != '/' && c != '$' {
			return false
		}
	}
	return name != ""
}

// fieldOf returns a field of a struct.
func fieldOf(v reflect.Value, index []int) reflect.Value {
	v = v.Field(index[0])
	for _, i := range index[1:] {
		v = v.Field(i)
	}
	return v
}
