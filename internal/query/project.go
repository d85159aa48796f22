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

// identity is what every item keeps.
var identity = [][]string{{"apiVersion"}, {"kind"}, {"metadata", "name"}, {"metadata", "namespace"}, {"metadata", "uid"}, {"metadata", "resourceVersion"}}

// projectionOf reads paths such as spec.cost,status.
func projectionOf(text string) ([][]string, error) {
	paths := slices.Clone(identity)
	for path := range strings.SplitSeq(text, ",") {
		parts := strings.Split(path, ".")
		switch {
		case slices.Contains(parts, ""):
			return nil, fmt.Errorf("fields: %.100q is no path such as spec.cost", path)
		case len(parts) > longestPath || len(paths) == mostPaths:
			return nil, fmt.Errorf("fields: %d paths of %d parts at most", mostPaths, longestPath)
		}
		paths = append(paths, parts)
	}
	return paths, nil
}

// project leaves in an object what is at some paths. Of a list, it is what is there in each item.
func project(object []byte, paths [][]string) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, errors.New("an item is no object")
	}
	kept, _ := pick(all, paths).(map[string]any)
	return json.Marshal(kept)
}

// pick returns what of a value is at some paths; nil if nothing is.
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
