package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
)

// Change is a field that two states of an object have different values of. A missing value is left out.
type Change struct {
	Path string `json:"path"`
	From any    `json:"from,omitempty"`
	To   any    `json:"to,omitempty"`
}

// bookkeeping are the fields of the metadata that the server writes with every change.
var bookkeeping = map[string]bool{"managedFields": true, "resourceVersion": true, "generation": true}

// Changes returns the differences between two states of an object in the order of paths, at most limit; more is true if
// there are others. It leaves out the resource version, the generation and the managed fields.
func Changes(from, to map[string]any, limit int) (changes []Change, more bool) {
	d := differ{limit: limit, changes: []Change{}}
	d.maps("", from, to)
	return d.changes, d.more
}

type differ struct {
	limit   int
	changes []Change
	more    bool
}

func (d *differ) add(c Change) {
	if len(d.changes) == d.limit {
		d.more = true
		return
	}
	d.changes = append(d.changes, c)
}

// absent is the value of a missing field.
type absent struct{}

func (d *differ) values(path string, from, to any) {
	if d.more || reflect.DeepEqual(from, to) {
		return
	}
	switch from := from.(type) {
	case map[string]any:
		if to, ok := to.(map[string]any); ok {
			d.maps(path, from, to)
			return
		}
	case []any:
		if to, ok := to.([]any); ok && d.lists(path, from, to) {
			return
		}
	}
	c := Change{Path: path}
	if _, missing := from.(absent); !missing {
		c.From = from
	}
	if _, missing := to.(absent); !missing {
		c.To = to
	}
	d.add(c)
}

func (d *differ) maps(path string, from, to map[string]any) {
	keys := slices.Collect(maps.Keys(from))
	for key := range to {
		if _, both := from[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if path == "metadata" && bookkeeping[key] {
			continue
		}
		d.values(fieldPath(path, key), valueAt(from, key), valueAt(to, key))
	}
}

func valueAt(object map[string]any, key string) any {
	if value, ok := object[key]; ok {
		return value
	}
	return absent{}
}

// lists compares items by their keys, or by their places. It returns false if the lists can only be compared as a whole.
func (d *differ) lists(path string, from, to []any) bool {
	if key := itemKey(from, to); key != "" {
		before, after := itemsBy(key, from), itemsBy(key, to)
		ids := slices.Collect(maps.Keys(before))
		for id := range after {
			if _, both := before[id]; !both {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		for _, id := range ids {
			d.values(itemPath(path, key, id), orAbsent(before[id]), orAbsent(after[id]))
		}
		return true
	}
	if len(from) != len(to) {
		return false
	}
	for i := range from {
		d.values(fmt.Sprintf("%s[%d]", path, i), from[i], to[i])
	}
	return true
}

func orAbsent(item map[string]any) any {
	if item == nil {
		return absent{}
	}
	return item
}

// itemKeys are the fields that identify an item of a list.
var itemKeys = []string{"name", "type", "key", "id", "uid"}

// itemKey returns the field that identifies each item of all the lists, empty if there is none.
func itemKey(lists ...[]any) string {
	for _, key := range itemKeys {
		if found := slices.ContainsFunc(lists, func(l []any) bool { return len(l) > 0 }); found &&
			!slices.ContainsFunc(lists, func(l []any) bool { return itemsBy(key, l) == nil }) {
			return key
		}
	}
	return ""
}

// itemsBy returns the items by a field; nil if an item does not have it, or two items have the same.
func itemsBy(key string, list []any) map[string]map[string]any {
	all := make(map[string]map[string]any, len(list))
	for _, value := range list {
		item, _ := value.(map[string]any)
		id, ok := item[key].(string)
		if _, twice := all[id]; !ok || twice {
			return nil
		}
		all[id] = item
	}
	return all
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

func fieldPath(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		text, _ := json.Marshal(key)
		return path + "[" + string(text) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

func itemPath(path, key, id string) string {
	text, _ := json.Marshal(id)
	return fmt.Sprintf("%s[%s=%s]", path, key, text)
}
