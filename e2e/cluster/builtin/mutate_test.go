package builtin

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/annexapi/annex/e2e/cluster/compare"
)

type random struct{ *rand.Rand }

func one[T any](r random, values []T) T { return values[r.IntN(len(values))] }

// place is a value in a document. set replaces it, and drop removes it.
type place struct {
	path  string
	value any
	set   func(any)
	drop  func()
}

// places returns all values except the name and type of the object.
func places(doc map[string]any) []place {
	var all []place
	var in func(path string, value any, set func(any), drop func())
	in = func(path string, value any, set func(any), drop func()) {
		if slices.Contains([]string{".apiVersion", ".kind", ".metadata", ".metadata.name", ".metadata.namespace"}, path) {
			if path != ".metadata" {
				return
			}
		} else if path != "" {
			all = append(all, place{path, value, set, drop})
		}
		switch v := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				in(path+"."+key, v[key], func(value any) { v[key] = value }, func() { delete(v, key) })
			}
		case []any:
			for i := range v {
				in(path+"[]", v[i], func(value any) { v[i] = value }, func() { set(slices.Delete(slices.Clone(v), i, i+1)) })
			}
		}
	}
	in("", doc, nil, nil)
	return all
}

var others = []any{nil, true, false, 0, -1, 1, 100, 1.5, []any{}, map[string]any{}, []any{"a"}, map[string]any{"a": "b"}}

// mutate changes a copy of a document in one to three places. Other valid objects of the same kind may supply parts.
func (r random) mutate(doc map[string]any, same []map[string]any) map[string]any {
	changed := compare.Clone(doc)
	for range 1 + r.IntN(3) {
		all := places(changed)
		if len(all) == 0 {
			return changed
		}
		p := one(r, all)
		switch r.IntN(24) {
		case 0, 1, 2, 3:
			p.drop()
		case 4, 5, 6, 7, 8, 9, 10, 11, 12:
			r.like(p)
		case 13:
			p.set(one(r, others))
		case 14, 15:
			if list, ok := p.value.([]any); ok && len(list) > 0 {
				p.set(append(slices.Clone(list), one(r, list)))
			} else if m, ok := p.value.(map[string]any); ok {
				m[one(r, compare.Strings())] = one(r, compare.Strings())
			} else {
				r.like(p)
			}
		default:
			r.splice(p, one(r, same))
		}
	}
	return changed
}

// like replaces a value by another one of its type.
func (r random) like(p place) {
	switch p.value.(type) {
	case string:
		p.set(one(r, compare.Strings()))
	case float64:
		p.set(one(r, []any{0, -1, 1, 2, 30, 31, 65536, 1 << 40}))
	case bool:
		p.set(!p.value.(bool))
	case []any:
		p.set([]any{})
	default:
		p.set(map[string]any{})
	}
}

// splice copies the value at the same place of another object.
func (r random) splice(p place, other map[string]any) {
	var found []any
	for _, q := range places(compare.Clone(other)) {
		if q.path == p.path {
			found = append(found, q.value)
		}
	}
	if len(found) > 0 {
		p.set(one(r, found))
	}
}
