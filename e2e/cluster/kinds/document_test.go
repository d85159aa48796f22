package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

// path leads to a value in a document: names of fields, and indices of lists.
type path []any

// String returns the path as in a cause of a rejection.
func (p path) String() string {
	var b strings.Builder
	for _, step := range p {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		}
	}
	return b.String()
}

// pointer returns the path as a JSON pointer.
func (p path) pointer() string {
	var b strings.Builder
	for _, step := range p {
		text := fmt.Sprint(step)
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(text))
	}
	return b.String()
}

// get returns the value at a path.
func get(doc any, p path) (any, bool) {
	for _, step := range p {
		switch step := step.(type) {
		case string:
			m, ok := doc.(map[string]any)
			if !ok {
				return nil, false
			}
			if doc, ok = m[step]; !ok {
				return nil, false
			}
		case int:
			l, ok := doc.([]any)
			if !ok || step >= len(l) {
				return nil, false
			}
			doc = l[step]
		}
	}
	return doc, true
}

// set replaces the value at a path whose parent exists.
func set(doc map[string]any, p path, value any) {
	parent, _ := get(doc, p[:len(p)-1])
	switch last := p[len(p)-1].(type) {
	case string:
		parent.(map[string]any)[last] = value
	case int:
		parent.([]any)[last] = value
	}
}

// drop removes the value at a path.
func drop(doc map[string]any, p path) {
	parent, _ := get(doc, p[:len(p)-1])
	switch last := p[len(p)-1].(type) {
	case string:
		delete(parent.(map[string]any), last)
	case int:
		set(doc, p[:len(p)-1], slices.Delete(slices.Clone(parent.([]any)), last, last+1))
	}
}

// places returns the paths of all values below the object itself, except its type.
func places(doc map[string]any) []path {
	var all []path
	var in func(at path, value any)
	in = func(at path, value any) {
		if text := at.String(); text == "apiVersion" || text == "kind" {
			return
		}
		if len(at) > 0 {
			all = append(all, slices.Clone(at))
		}
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				in(append(at, key), v[key])
			}
		case []any:
			for i := range v {
				in(append(at, i), v[i])
			}
		}
	}
	in(nil, doc)
	return all
}

// find returns the longest path of a document that begins the field of a cause, and whether it is the whole field.
func find(doc map[string]any, field string) (path, bool) {
	var at path
	var value any = doc
	for field != "" {
		field = strings.TrimPrefix(field, ".")
		switch v := value.(type) {
		case map[string]any:
			key, rest := "", ""
			for name := range v { // a name may have dots
				for _, form := range []string{name, "[" + name + "]"} {
					after, ok := strings.CutPrefix(field, form)
					if ok && len(name) >= len(key) && (after == "" || strings.ContainsRune(".[", rune(after[0]))) {
						key, rest = name, after
					}
				}
			}
			if key == "" {
				return at, false
			}
			at, value, field = append(at, key), v[key], rest
		case []any:
			index, rest, ok := strings.Cut(strings.TrimPrefix(field, "["), "]")
			i, err := strconv.Atoi(index)
			if !ok || err != nil || i >= len(v) {
				return at, false
			}
			at, value, field = append(at, i), v[i], rest
		default:
			return at, false
		}
	}
	return at, true
}

// change is a document with one changed value.
type change struct {
	at path
	// value is the new value; dropped means that there is none.
	value   any
	dropped bool
	doc     map[string]any
}

// String describes the change.
func (c change) String() string {
	if c.dropped {
		return "without " + c.at.String()
	}
	return fmt.Sprintf("%s = %.60q", c.at, fmt.Sprint(c.value))
}

// changes returns the document with every value dropped, emptied, given another type, repeated, and replaced by others.
func (r random) changes(doc map[string]any) []change {
	var all []change
	for _, at := range places(doc) {
		name := at.String()
		if name == "metadata" || name == "metadata.name" || name == "metadata.namespace" {
			continue // the request's path has them
		}
		old, _ := get(doc, at)
		c := change{at: at, dropped: true, doc: compare.Clone(doc)}
		drop(c.doc, at)
		all = append(all, c)
		for _, value := range r.others(old) {
			c := change{at: at, value: value, doc: compare.Clone(doc)}
			set(c.doc, at, value)
			c.doc = compare.Clone(c.doc)
			all = append(all, c)
		}
	}
	return all
}

// others returns values to replace a value by.
func (r random) others(old any) []any {
	texts := compare.Strings()
	switch v := old.(type) {
	case string:
		return []any{nil, "", v + "-b", 5, one(r, texts), one(r, texts), one(r, texts)}
	case float64:
		return []any{nil, 0, -1, v + 1, 1 << 40, 1.5, "x"}
	case bool:
		return []any{nil, !v, "x"}
	case []any:
		all := []any{nil, []any{}, "x", []any{nil}, append(slices.Clone(v), one(r, texts))}
		if len(v) > 0 {
			all = append(all, append(slices.Clone(v), v[0]), append(slices.Clone(v), r.varied(v[0])))
		}
		return all
	case map[string]any:
		more := maps.Clone(v)
		more["unknown"] = "x"
		odd := maps.Clone(v)
		odd[one(r, texts)] = one(r, texts)
		return []any{nil, map[string]any{}, "x", more, odd}
	}
	return []any{"x"}
}

// varied returns a value with another text in it.
func (r random) varied(value any) any {
	switch v := value.(type) {
	case string:
		return v + "-b"
	case map[string]any:
		v = maps.Clone(v)
		for _, key := range []string{"name", "key", "type", "value"} {
			if text, ok := v[key].(string); ok {
				v[key] = text + "-b"
				break
			}
		}
		return v
	}
	return value
}

// patch returns the change as a merge patch. A list is replaced as a whole.
func (c change) patch() map[string]any {
	var in func(at path, doc any) any
	in = func(at path, doc any) any {
		if len(at) == 0 {
			return c.value
		}
		key, ok := at[0].(string)
		if !ok {
			return doc // the changed list
		}
		m, _ := doc.(map[string]any)
		if len(at) == 1 && c.dropped {
			return map[string]any{key: nil}
		}
		return map[string]any{key: in(at[1:], m[key])}
	}
	return in(c.at, c.doc).(map[string]any)
}

// operations returns the change as a JSON patch.
func (c change) operations() []any {
	operation := map[string]any{"op": "replace", "path": c.at.pointer(), "value": c.value}
	if c.dropped {
		operation = map[string]any{"op": "remove", "path": c.at.pointer()}
	}
	return []any{operation}
}
