package files

import "github.com/annexapi/annex/store/driver"

// proposal is an edit of a file, with the state of the file.
type proposal struct {
	driver.Edit
	name     string
	resource *resource
	base     []byte // the content of the file before the edit; nil if it is unknown
	hash     digest
	stamp    stamp
	more     bool // the document has content that is not visible
}

// onto is the function Onto of the edit. If the file and the object have changed the same field, the person's value
// wins; a list is one field. A file in another version than the object replaces it as a whole.
func (p *proposal) onto(stored []byte) []byte {
	shown, _, ok := visible(stored, p.resource.Status)
	if !ok || p.base == nil {
		return p.Document
	}
	merged, ok := mergeEdit(p.base, p.Document, jsonObject(shown))
	if !ok {
		return p.Document
	}
	return merged
}
