package files

import "github.com/annexapi/annex/store/driver"

// proposal is an edit of a file, and what is known of the file.
type proposal struct {
	driver.Edit
	name     string
	resource *resource
	base     []byte // what the file said before; nil if that is not known
	hash     digest
	stamp    stamp
	more     bool // the document says more than what people write
}

// onto is the Onto of the edit of a file. Where the file and the object have changed the
// same field, the person's stands; a list is one field. A file in another version than the
// object counts as a whole.
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
