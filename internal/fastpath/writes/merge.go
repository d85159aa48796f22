package writes

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// member is one of a JSON object.
type member struct {
	key   string
	whole []byte // key and value as they are written
	value []byte
}

// merged returns a document changed by a merge patch, both of which are JSON objects without members of the same name, as
// RFC 7386 says and the library does that upstream's handlers use. What the patch leaves alone is copied as it is. It is nil if the
// library has to do it: it takes nulls out of some lists, and leaves them in others.
func merged(document, patch []byte) []byte {
	if bytes.IndexByte(patch, '[') >= 0 && bytes.Contains(patch, []byte("null")) || !utf8.Valid(patch) {
		return nil
	}
	at := space(document, 0)
	if at == len(document) || document[at] != '{' || patch[space(patch, 0)] != '{' {
		return nil
	}
	return merge(make([]byte, 0, len(document)+len(patch)), document, patch)
}

func merge(to, document, patch []byte) []byte {
	changes := members(patch)
	find := finder(changes)
	done := make([]bool, len(changes))
	to = append(to, '{')
	begin := len(to)
	for _, m := range members(document) {
		i := find(m.key)
		if i < 0 {
			to = append(comma(to, begin), m.whole...)
			continue
		}
		change := changes[i].value
		if isNull(m.value) {
			continue // it is as if there were none
		}
		done[i] = true
		if isNull(change) {
			continue
		}
		to = append(comma(to, begin), m.whole[:len(m.whole)-len(m.value)]...)
		switch {
		case m.value[0] == '{' && change[0] == '{':
			to = merge(to, m.value, change)
		case m.value[0] == '{':
			to = append(to, change...)
		default:
			to = appendWithoutNulls(to, change)
		}
	}
	for i, c := range changes {
		if !done[i] && !isNull(c.value) {
			to = append(comma(to, begin), c.whole[:len(c.whole)-len(c.value)]...)
			to = appendWithoutNulls(to, c.value)
		}
	}
	return append(to, '}')
}

// fewMembers is how many are looked through without an index of them.
const fewMembers = 16

// finder returns what finds a member by its key, or -1. Patches and documents of a hundred thousand members would take
// minutes if each were compared with each.
func finder(in []member) func(key string) int {
	if len(in) <= fewMembers {
		return func(key string) int { return slices.IndexFunc(in, func(m member) bool { return m.key == key }) }
	}
	index := make(map[string]int, len(in))
	for i, m := range in {
		index[m.key] = i
	}
	return func(key string) int {
		if i, ok := index[key]; ok {
			return i
		}
		return -1
	}
}

func comma(to []byte, begin int) []byte {
	if len(to) > begin {
		to = append(to, ',')
	}
	return to
}

// appendWithoutNulls appends a value without the members that are null, at any depth of objects.
func appendWithoutNulls(to, value []byte) []byte {
	if value[0] != '{' || !bytes.Contains(value, []byte("null")) {
		return append(to, value...)
	}
	to = append(to, '{')
	begin := len(to)
	for _, m := range members(value) {
		if !isNull(m.value) {
			to = append(comma(to, begin), m.whole[:len(m.whole)-len(m.value)]...)
			to = appendWithoutNulls(to, m.value)
		}
	}
	return append(to, '}')
}

func isNull(value []byte) bool { return value[0] == 'n' }

// members returns those of an object, which is valid JSON.
func members(object []byte) []member {
	all := make([]member, 0, 8)
	at := space(object, space(object, 0)+1)
	for object[at] != '}' {
		if object[at] == ',' {
			at = space(object, at+1)
		}
		begin := at
		at = end(object, at)
		m := member{key: name(object[begin:at])}
		at = space(object, space(object, at)+1) // behind the colon
		from := at
		at = end(object, at)
		m.whole, m.value = object[begin:at], object[from:at]
		all = append(all, m)
		at = space(object, at)
	}
	return all
}

// name is what a key says.
func name(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var key string
	// It is valid.
	_ = json.Unmarshal(quoted, &key)
	return key
}

// space is where the white space from an index on ends.
func space(data []byte, at int) int {
	for at < len(data) && (data[at] == ' ' || data[at] == '\n' || data[at] == '\t' || data[at] == '\r') {
		at++
	}
	return at
}

// end is where the value that begins at an index ends.
func end(data []byte, at int) int {
	switch data[at] {
	case '"':
		for at++; data[at] != '"'; at++ {
			if data[at] == '\\' {
				at++
			}
		}
		return at + 1
	case '{', '[':
		depth := 0
		for ; ; at++ {
			switch data[at] {
			case '"':
				at = end(data, at) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return at + 1
				}
			}
		}
	}
	for at < len(data) && bytes.IndexByte([]byte(",}] \n\t\r"), data[at]) < 0 {
		at++
	}
	return at
}
