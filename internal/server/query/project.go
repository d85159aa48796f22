package query

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// mostPaths and longestPath bound a projection.
const (
	mostPaths   = 50
	longestPath = 20
)

// identity are the paths that every item keeps.
var identity = [][]string{
	{"apiVersion"},
	{"kind"},
	{"metadata", "name"},
	{"metadata", "namespace"},
	{"metadata", "uid"},
	{"metadata", "resourceVersion"},
}

// projectionOf parses paths such as spec.cost,status.
func projectionOf(text string) ([][]string, error) {
	paths := slices.Clone(identity)
	for path := range strings.SplitSeq(text, ",") {
		parts := strings.Split(path, ".")
		switch {
		case slices.Contains(parts, ""):
			return nil, fmt.Errorf("fields: %.100q is not a path such as spec.cost", path)
		case len(parts) > longestPath || len(paths) == mostPaths:
			return nil, fmt.Errorf("fields: %d paths of %d parts at most", mostPaths, longestPath)
		}
		paths = append(paths, parts)
	}
	return paths, nil
}

// item returns the requested parts of an object.
func (a *parsedRequest) item(object []byte) ([]byte, error) {
	if !a.managedFields {
		var err error
		if object, err = withoutManagedFields(object); err != nil {
			return nil, err
		}
	}
	if a.projection == nil {
		return object, nil
	}
	return project(object, a.projection)
}

var (
	errNoObject      = errors.New("an item is not an object")
	managedFieldsKey = []byte(`"managedFields"`)
)

// withoutManagedFields removes metadata.managedFields from an object and keeps all other bytes as they are. It does
// not modify object, which other readers may share.
func withoutManagedFields(object []byte) ([]byte, error) {
	if !bytes.Contains(object, managedFieldsKey) {
		return object, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(object))
	found, err := enter(decoder, "metadata")
	if err != nil || !found {
		return object, err
	}
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return object, err // null, which contains none
	}
	first := true
	for before := decoder.InputOffset(); decoder.More(); before, first = decoder.InputOffset(), false {
		name, err := decoder.Token()
		if err != nil {
			return nil, fmt.Errorf("read an item: %w", err)
		}
		if err := decoder.Decode(new(json.RawMessage)); err != nil {
			return nil, fmt.Errorf("read an item: %w", err)
		}
		if name != "managedFields" {
			continue
		}
		rest := object[decoder.InputOffset():]
		if first {
			rest = bytes.TrimPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(","))
		}
		return slices.Concat(object[:before], rest), nil
	}
	return object, nil
}

// enter reads an object up to the value of a member. It returns false if there is no such member.
func enter(decoder *json.Decoder, member string) (bool, error) {
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return false, errors.Join(errNoObject, err)
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return false, fmt.Errorf("read an item: %w", err)
		}
		if name == member {
			return true, nil
		}
		if err := decoder.Decode(new(json.RawMessage)); err != nil {
			return false, fmt.Errorf("read an item: %w", err)
		}
	}
	return false, nil
}

// project keeps the values at some paths of an object. For a list, a path applies to each item.
func project(object []byte, paths [][]string) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, errNoObject
	}
	kept, _ := pick(all, paths).(map[string]any)
	return json.Marshal(kept)
}

// pick returns the values at some paths of value; nil if there are none.
func pick(value any, paths [][]string) any {
	if slices.ContainsFunc(paths, func(p []string) bool { return len(p) == 0 }) {
		return value
	}
	switch value := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, inner := range value {
			var below [][]string
			for _, p := range paths {
				if p[0] == name {
					below = append(below, p[1:])
				}
			}
			if len(below) == 0 {
				continue
			}
			if part := pick(inner, below); part != nil || inner == nil {
				kept[name] = part
			}
		}
		return kept
	case []any:
		kept := make([]any, len(value))
		for i, inner := range value {
			kept[i] = pick(inner, paths)
		}
		return kept
	}
	return nil
}
