package writes

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// member is a member of a JSON object.
type member struct {
	key   string
	whole []byte // key and value as written in the document
	value []byte
}

// mergePatch applies a merge patch to a document, as RFC 7386 and upstream's library do. Both arguments must be JSON
// objects without repeated members. Members that the patch leaves alone are copied byte for byte. merged returns nil
// if the library has to do the work: it removes nulls from some lists and keeps them in others.
func mergePatch(document, patch []byte) []byte {
	if bytes.IndexByte(patch, '[') >= 0 && bytes.Contains(patch, []byte("null")) || !utf8.Valid(patch) {
		return nil
	}
	at := skipSpace(document, 0)
	if at == len(document) || document[at] != '{' || patch[skipSpace(patch, 0)] != '{' {
		return nil
	}
	return merge(make([]byte, 0, len(document)+len(patch)), document, patch)
}

func merge(to, document, patch []byte) []byte {
	changes := members(patch)
	find := memberIndex(changes)
	done := make([]bool, len(changes))
	to = append(to, '{')
	begin := len(to)
	for _, m := range members(document) {
		i := find(m.key)
		if i < 0 {
			to = append(appendComma(to, begin), m.whole...)
			continue
		}
		change := changes[i].value
		if isNull(m.value) {
			continue // as if the document had no such member
		}
		done[i] = true
		if isNull(change) {
			continue
		}
		to = append(appendComma(to, begin), m.whole[:len(m.whole)-len(m.value)]...)
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
			to = append(appendComma(to, begin), c.whole[:len(c.whole)-len(c.value)]...)
			to = appendWithoutNulls(to, c.value)
		}
	}
	return append(to, '}')
}

// fewMembers is the largest number of members that are searched without an index.
const fewMembers = 16

// memberIndex returns a function that returns the index of the member with a key, or -1. Without an index, patches and
// documents of a hundred thousand members would take minutes, because each member is compared with each.
func memberIndex(in []member) func(key string) int {
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

func appendComma(to []byte, begin int) []byte {
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
			to = append(appendComma(to, begin), m.whole[:len(m.whole)-len(m.value)]...)
			to = appendWithoutNulls(to, m.value)
		}
	}
	return append(to, '}')
}

func isNull(value []byte) bool { return value[0] == 'n' }

// members returns the members of an object, which must be valid JSON.
func members(object []byte) []member {
	all := make([]member, 0, 8)
	at := skipSpace(object, skipSpace(object, 0)+1)
	for object[at] != '}' {
		if object[at] == ',' {
			at = skipSpace(object, at+1)
		}
		begin := at
		at = skipValue(object, at)
		m := member{key: decodeKey(object[begin:at])}
		at = skipSpace(object, skipSpace(object, at)+1) // behind the colon
		from := at
		at = skipValue(object, at)
		m.whole, m.value = object[begin:at], object[from:at]
		all = append(all, m)
		at = skipSpace(object, at)
	}
	return all
}

// decodeKey returns the decoded key.
func decodeKey(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var key string
	// The key is valid: the caller has validated the document.
	_ = json.Unmarshal(quoted, &key)
	return key
}

// skipSpace returns the index behind the white space that begins at an index.
func skipSpace(data []byte, at int) int {
	for at < len(data) && (data[at] == ' ' || data[at] == '\n' || data[at] == '\t' || data[at] == '\r') {
		at++
	}
	return at
}

// skipValue returns the index behind the value that begins at an index.
func skipValue(data []byte, at int) int {
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
				at = skipValue(data, at) - 1
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
