// Package yamlsize bounds the size of a YAML document after its aliases are replaced by the aliased values. Libraries
// replace them while they decode: 200 KB that name one long string 5,000 times become a gigabyte of JSON, and several
// in memory. The package reads the document without replacing any alias, and so reports the size in advance.
package yamlsize

import (
	"bytes"
	"fmt"
	"math"

	yaml "go.yaml.in/yaml/v3"
)

// TooLargeError means that a document is larger than its limit once its aliases are replaced.
type TooLargeError struct {
	Limit int // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the YAML is larger than %d bytes after the expansion of its aliases; use fewer aliases, or send several smaller "+
		"documents", e.Limit)
}

// Check returns a *TooLargeError if the first document in data, with its aliases replaced, is larger than limit bytes
// by the rules of Of. It returns Of's error if there is one.
func Check(data []byte, limit int) error {
	size, err := Of(data)
	if err == nil && size > max(limit, len(data)) {
		err = &TooLargeError{Limit: limit}
	}
	return err
}

// Of returns the size in bytes of the first document in data after all aliases, including those of merge keys, are
// replaced: the length of data if it has none. Readers of a single document read the first one. A value counts its
// own bytes and one more for the separator, so that a document costs its reader no more than a document of the same
// size without aliases. math.MaxInt stands for any larger size.
//
// An error means that data with aliases is no YAML; data without aliases is not parsed. Of needs the memory and time
// for a text of the length of data.
func Of(data []byte) (int, error) {
	// An alias needs both characters, in every encoding of YAML.
	if bytes.IndexByte(data, '&') < 0 || bytes.IndexByte(data, '*') < 0 {
		return len(data), nil
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return 0, err
	}
	m := measure{anchors: map[*yaml.Node]int{}}
	size, err := m.of(&document)
	if err != nil {
		return 0, err
	}
	if !m.aliases {
		size = 0
	}
	return max(size, len(data)), nil
}

// measure adds up sizes.
type measure struct {
	anchors map[*yaml.Node]int // sizes of values with an anchor; unknown while they are measured
	aliases bool
}

// unknown is the size of a value that is being measured.
const unknown = -1

func (m *measure) of(n *yaml.Node) (int, error) {
	if n.Kind == yaml.AliasNode {
		m.aliases = true
		n = n.Alias
	}
	if n.Anchor == "" {
		return m.sum(n)
	}
	switch size, known := m.anchors[n]; {
	case known && size == unknown:
		return 0, fmt.Errorf("yaml: line %d: anchor %q contains itself", n.Line, n.Anchor)
	case known:
		return size, nil
	}
	m.anchors[n] = unknown
	size, err := m.sum(n)
	m.anchors[n] = size
	return size, err
}

func (m *measure) sum(n *yaml.Node) (int, error) {
	size := len(n.Value) + 1
	for _, inner := range n.Content {
		more, err := m.of(inner)
		if err != nil {
			return 0, err
		}
		if size > math.MaxInt-more {
			return math.MaxInt, nil
		}
		size += more
	}
	return size, nil
}
