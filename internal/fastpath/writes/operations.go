package writes

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// mostQuick is the largest number of operations that are applied to the text of a document. Each one reads the document
// from its beginning.
const mostQuick = 16

// quickOperation is an operation of a JSON patch that sets or removes members of objects, or tests a string.
type quickOperation struct {
	op    string
	path  []string // keys of objects, at least one
	value []byte   // a string or a boolean; nil for a removal
}

// quickOperations returns the operations of a JSON patch, which must be valid JSON. It returns nil unless each has a
// simple form, of which the strict decoder of upstream has nothing to report: the members op, path and value, a value
// without members and numbers, and no operation on the whole document.
func quickOperations(patch []byte) []quickOperation {
	at := skipSpace(patch, 0)
	if at == len(patch) || patch[at] != '[' || !utf8.Valid(patch) {
		return nil
	}
	operations := make([]quickOperation, 0, 4)
	for at = skipSpace(patch, at+1); patch[at] != ']'; at = skipSpace(patch, at) {
		if patch[at] == ',' {
			at = skipSpace(patch, at+1)
		}
		if patch[at] != '{' || len(operations) == mostQuick {
			return nil
		}
		begin := at
		at = skipValue(patch, at)
		operation, ok := quickOperationOf(patch[begin:at])
		if !ok {
			return nil
		}
		operations = append(operations, operation)
	}
	return operations
}

func quickOperationOf(object []byte) (o quickOperation, ok bool) {
	var path string
	for _, m := range members(object) {
		switch {
		case m.key == "op" && o.op == "" && isPlainValue(m.value):
			o.op = string(m.value[1 : len(m.value)-1])
		case m.key == "path" && path == "" && isPlainValue(m.value):
			path = string(m.value[1 : len(m.value)-1])
		case m.key == "value" && o.value == nil && (m.value[0] == '"' || m.value[0] == 't' || m.value[0] == 'f'):
			o.value = m.value
		default:
			return o, false
		}
	}
	switch o.op {
	case "add", "replace":
		ok = o.value != nil
	case "test":
		ok = o.value != nil && isPlainValue(o.value)
	case "remove":
		ok = o.value == nil
	}
	if !ok || len(path) < 2 || path[0] != '/' {
		return o, false
	}
	o.path = strings.Split(path[1:], "/")
	if strings.IndexByte(path, '~') >= 0 {
		for i, key := range o.path {
			o.path[i] = strings.ReplaceAll(strings.ReplaceAll(key, "~1", "/"), "~0", "~")
		}
	}
	return o, true
}

// isPlainValue reports whether a value is a string without escapes.
func isPlainValue(value []byte) bool {
	return len(value) >= 2 && value[0] == '"' && isPlainString(string(value[1:len(value)-1]))
}

// applyQuickly applies operations to a document, which must be a JSON object without repeated members. It returns nil if
// an operation needs more than the text of an object's member, or fails: then the library has to apply the patch. Members
// that no operation names are copied byte for byte.
func applyQuickly(document []byte, operations []quickOperation) []byte {
	if at := skipSpace(document, 0); at == len(document) || document[at] != '{' {
		return nil
	}
	for _, o := range operations {
		if o.op == "test" {
			if found := findPath(document, o.path); !found.is || !bytes.Equal(document[found.value:found.end], o.value) {
				return nil
			}
			continue
		}
		const more = len(`,"":`)
		to := make([]byte, 0, len(document)+len(o.value)+len(o.path[len(o.path)-1])+more)
		if document = o.apply(to, document); document == nil {
			return nil
		}
	}
	return document
}

// apply appends the document as the operation changes it; nil if the library has to do that.
func (o quickOperation) apply(to, document []byte) []byte {
	found := findPath(document, o.path)
	switch {
	case found.is && isNull(document[found.value:]), !found.is && (found.end == 0 || o.op != "add"):
		return nil
	case found.is && o.op == "remove":
		begin, end := found.begin, found.end
		if next := skipSpace(document, end); document[next] == ',' {
			end = next + 1
		} else { // the last member goes with the comma in front of it
			for begin--; document[begin] != ',' && document[begin] != '{'; begin-- {
			}
			if document[begin] == '{' {
				begin++
			}
		}
		return append(append(to, document[:begin]...), document[end:]...)
	case found.is:
		to = append(append(to, document[:found.value]...), o.value...)
		return append(to, document[found.end:]...)
	}
	key := o.path[len(o.path)-1]
	if !isPlainString(key) {
		return nil
	}
	to = append(to, document[:found.end]...)
	if !found.empty {
		to = append(to, ',')
	}
	to = append(append(append(to, '"'), key...), `":`...)
	return append(append(to, o.value...), document[found.end:]...)
}

// foundMember is a place in a document.
type foundMember struct {
	// is is true if the member exists: it begins at begin, and its value lasts from value to end.
	is                bool
	begin, value, end int
	// If the member does not exist, end is where it would be added, 0 if it has no object to be in, and empty is true if
	// that object has no member.
	empty bool
}

// findPath finds a member by the keys of the objects around it, and its own.
func findPath(document []byte, path []string) (found foundMember) {
	at := skipSpace(document, 0)
	for i, key := range path {
		if document[at] != '{' {
			return foundMember{}
		}
		if found = findMember(document, at, key); !found.is {
			if i < len(path)-1 {
				return foundMember{}
			}
			return found
		}
		at = found.value
	}
	return found
}

// findMember finds a member of the object that begins at an index.
func findMember(document []byte, at int, key string) foundMember {
	at = skipSpace(document, at+1)
	empty := document[at] == '}'
	for document[at] != '}' {
		if document[at] == ',' {
			at = skipSpace(document, at+1)
		}
		begin := at
		at = skipValue(document, at)
		quoted := document[begin:at]
		value := skipSpace(document, skipSpace(document, at)+1) // behind the colon
		at = skipValue(document, value)
		if string(quoted[1:len(quoted)-1]) == key || bytes.IndexByte(quoted, '\\') >= 0 && decodeKey(quoted) == key {
			return foundMember{is: true, begin: begin, value: value, end: at}
		}
		at = skipSpace(document, at)
	}
	return foundMember{end: at, empty: empty}
}
