package configfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

var (
	unknownField = regexp.MustCompile(`^(?:unknown|duplicate) field "([^"]+)"$`)
	wrongType    = regexp.MustCompile(`cannot unmarshal (\w+) into Go struct field \w+\.(\S+) of type (\S+)`)
	quoted       = regexp.MustCompile(`"([^"]*)"`)
)

// located returns a decoder's error in one line, with the places of its fields as far as they can be found.
func located(root *yaml.Node, err error) error {
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		var all []string
		for _, e := range strict.Errors() {
			text := e.Error()
			if match := unknownField.FindStringSubmatch(text); match != nil {
				text = at(root, match[1], text)
			}
			all = append(all, text)
		}
		slices.Sort(all) // upstream's order is not stable
		return oneLine(errors.New(strings.Join(all, "; ")))
	}
	text := err.Error()
	if match := wrongType.FindStringSubmatch(text); match != nil {
		reason := fmt.Sprintf("%s: %s instead of %s", match[2], match[1], match[3])
		for _, node := range all(root, steps(match[2])) {
			if isOf(node, match[1]) {
				return fmt.Errorf("line %d: %s", node.Line, reason)
			}
		}
		return errors.New(reason)
	}
	// The error of a type's own text format names no field: durations.
	if match := quoted.FindStringSubmatch(text); match != nil {
		if path, node := holder(root, "", match[1]); node != nil {
			return oneLine(fmt.Errorf("line %d: %s: %w", node.Line, path, err))
		}
	}
	return oneLine(err)
}

// at returns a text prefixed with the line of a field, or of the innermost part of its path that exists.
func at(root *yaml.Node, path, text string) string {
	line, node := root.Line, root
	for _, step := range steps(path) {
		key, next := child(node, step)
		if next == nil {
			break
		}
		line, node = key.Line, next
	}
	return fmt.Sprintf("line %d: %s", line, strings.Join(strings.Fields(text), " "))
}

// steps returns the parts of a path such as jwt[0].issuer.
func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// child returns a part of a node, and the node at which it begins; nil if it does not exist.
func child(node *yaml.Node, step string) (key, value *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}

// all returns the nodes of a path without the indexes of lists.
func all(node *yaml.Node, steps []string) []*yaml.Node {
	if node.Kind == yaml.SequenceNode && len(steps) > 0 {
		var found []*yaml.Node
		for _, item := range node.Content {
			found = append(found, all(item, steps)...)
		}
		return found
	}
	if len(steps) == 0 {
		return []*yaml.Node{node}
	}
	if _, next := child(node, steps[0]); next != nil {
		return all(next, steps[1:])
	}
	return nil
}

// isOf reports whether a node has a type of JSON.
func isOf(node *yaml.Node, kind string) bool {
	switch kind {
	case "object":
		return node.Kind == yaml.MappingNode
	case "array":
		return node.Kind == yaml.SequenceNode
	case "string":
		return node.Kind == yaml.ScalarNode && slices.Contains([]string{"!!str", "!!timestamp"}, node.Tag)
	case "bool":
		return node.Tag == "!!bool"
	default:
		return slices.Contains([]string{"!!int", "!!float"}, node.Tag)
	}
}

// holder returns the path of the first node with a text, and that node; nil if there is none.
func holder(node *yaml.Node, path, text string) (string, *yaml.Node) {
	switch node.Kind {
	case yaml.ScalarNode:
		if node.Value == text {
			return path, node
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if path, found := holder(node.Content[i+1], strings.TrimPrefix(path+"."+node.Content[i].Value, "."), text); found != nil {
				return path, found
			}
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if path, found := holder(item, fmt.Sprintf("%s[%d]", path, i), text); found != nil {
				return path, found
			}
		}
	}
	return "", nil
}
