package plainjson

import (
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
)

// Trees decodes JSON into maps, slices and plain values. Equal keys of different objects share one string. The zero
// value is ready to use, and its methods may be called concurrently.
type Trees struct {
	known atomic.Pointer[map[string]string] // never changed

	mu    sync.Mutex
	fresh map[string]string // keys that known does not have yet
}

// Objects have the names of fields as keys, and the names of labels. Only the former are few.
const (
	mostKeys   = 4096
	longestKey = 64
	// publishKeys is the number of new keys after which all readers see them.
	publishKeys = 64
)

// Decode decodes a JSON object. The result is that of sigs.k8s.io/json with case-sensitive names and preserved integers,
// into a map[string]any. ok is false if the library must decode the input.
func (t *Trees) Decode(data []byte) (tree map[string]any, ok bool) {
	d := decoder{data: data}
	keys := keyTable{trees: t}
	if known := t.known.Load(); known != nil {
		keys.known = *known
	}
	d.space()
	if tree, ok = d.treeObject(&keys); !ok {
		return nil, false
	}
	d.space()
	return tree, d.at == len(d.data)
}

// keyTable is what one decoding knows of the keys.
type keyTable struct {
	trees *Trees
	known map[string]string
}

func (k *keyTable) of(key []byte) string {
	if s, ok := k.known[string(key)]; ok {
		return s
	}
	if len(key) > longestKey || len(k.known) >= mostKeys {
		return string(key)
	}
	return k.trees.add(key)
}

// add returns the string for a key, and remembers it.
func (t *Trees) add(key []byte) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.fresh[string(key)]; ok {
		return s
	}
	s := string(key)
	if t.fresh == nil {
		t.fresh = map[string]string{}
	}
	if t.fresh[s] = s; len(t.fresh) < publishKeys {
		return s
	}
	all := t.fresh
	if before := t.known.Load(); before != nil {
		maps.Copy(all, *before)
	}
	t.fresh = nil
	t.known.Store(&all)
	return s
}

func (d *decoder) tree(keys *keyTable) (value any, ok bool) {
	switch c := d.next(); c {
	case '{', '[':
		if d.depth++; d.depth > deepest {
			return nil, false
		}
		if c == '{' {
			value, ok = d.treeObject(keys)
		} else {
			value, ok = d.treeList(keys)
		}
		d.depth--
		return value, ok
	case '"':
		return d.text()
	case 't':
		return true, d.word("true")
	case 'f':
		return false, d.word("false")
	case 'n':
		return nil, d.word("null")
	}
	number, ok := d.number()
	if !ok {
		return nil, false
	}
	if i, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return i, true
	}
	f, err := strconv.ParseFloat(string(number), 64)
	return f, err == nil
}

func (d *decoder) treeObject(keys *keyTable) (map[string]any, bool) {
	if !d.is('{') {
		return nil, false
	}
	m := map[string]any{}
	if d.is('}') {
		return m, true
	}
	for {
		d.space()
		begin := d.at
		literal, plain, ok := d.literal()
		if !ok {
			return nil, false
		}
		var key string
		if plain {
			key = keys.of(literal)
		} else {
			d.at = begin
			if key, ok = d.text(); !ok {
				return nil, false
			}
		}
		if !d.is(':') {
			return nil, false
		}
		d.space()
		if m[key], ok = d.tree(keys); !ok {
			return nil, false
		}
		if more, ok := d.another('}'); !more {
			return m, ok
		}
	}
}

func (d *decoder) treeList(keys *keyTable) ([]any, bool) {
	if !d.is('[') {
		return nil, false
	}
	list := []any{}
	if d.is(']') {
		return list, true
	}
	for {
		d.space()
		item, ok := d.tree(keys)
		if !ok {
			return nil, false
		}
		list = append(list, item)
		if more, ok := d.another(']'); !more {
			return list, ok
		}
	}
}
