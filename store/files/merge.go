package files

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// mergeEdit applies the difference between base and edit to current. All three are JSON objects; ok is false if their
// apiVersions differ, because such objects cannot be compared.
func mergeEdit(base, edit, current []byte) (merged []byte, ok bool) {
	var objects [3]map[string]any
	for i, data := range [][]byte{base, edit, current} {
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if decoder.Decode(&objects[i]) != nil || objects[i]["apiVersion"] != objects[0]["apiVersion"] {
			return nil, false
		}
	}
	merged, err := json.Marshal(mergeValue(objects[0], objects[1], objects[2]))
	return merged, err == nil
}

func mergeValue(base, edit, current any) any {
	e, isObject := edit.(map[string]any)
	c, both := current.(map[string]any)
	if !isObject || !both {
		if reflect.DeepEqual(base, edit) {
			return current
		}
		return edit
	}
	b, _ := base.(map[string]any)
	merged := map[string]any{}
	for name, now := range c {
		was, before := b[name]
		wanted, stays := e[name]
		switch {
		case stays:
			merged[name] = mergeValue(was, wanted, now)
		case !before:
			merged[name] = now // it was added after the person had read the file
		}
	}
	for name, wanted := range e {
		if _, exists := c[name]; exists {
			continue
		}
		if was, before := b[name]; !before || !reflect.DeepEqual(was, wanted) {
			merged[name] = wanted
		}
	}
	return merged
}

// mergeYAML changes a person's file to the content of shown, and keeps the order of fields, comments and ways of
// writing as far as possible. If that fails, it returns plain, the file that the server would write by itself.
func mergeYAML(file []byte, shown []member, plain []byte) []byte {
	var document yamlv3.Node
	if yamlv3.Unmarshal(file, &document) != nil || document.Kind != yamlv3.DocumentNode || hasAliases(&document) {
		return plain
	}
	want, err := yamlOf(shown)
	if err != nil {
		return plain
	}
	document.Content[0] = mergeNode(document.Content[0], want)
	merged, err := encodeNode(&document)
	if err != nil || len(merged) > maxFile || !sayTheSame(merged, shown) {
		return plain
	}
	return merged
}

// sayTheSame reports whether a file has the content of shown.
func sayTheSame(file []byte, shown []member) bool {
	document, err := parse(file)
	if err != nil {
		return false
	}
	var read, want any
	if json.Unmarshal(document, &read) != nil || json.Unmarshal(jsonObject(shown), &want) != nil {
		return false
	}
	return reflect.DeepEqual(read, want)
}

func hasAliases(node *yamlv3.Node) bool {
	if node.Kind == yamlv3.AliasNode || node.Anchor != "" || node.Tag == "!!merge" {
		return true
	}
	for _, child := range node.Content {
		if hasAliases(child) {
			return true
		}
	}
	return false
}

// mergeNode returns a node with the content of want, written in the way of old.
func mergeNode(old, want *yamlv3.Node) *yamlv3.Node {
	switch {
	case old.Kind != want.Kind || len(old.Content) == 0 || len(want.Content) == 0:
		if old.Kind == yamlv3.ScalarNode && canonical(old) == canonical(want) {
			return old
		}
		want.HeadComment, want.LineComment, want.FootComment = old.HeadComment, old.LineComment, old.FootComment
		return want
	case old.Kind == yamlv3.MappingNode:
		mergeMapping(old, want)
	case old.Kind == yamlv3.SequenceNode:
		mergeSequence(old, want)
	}
	return old
}

// mergeMapping keeps the order of the remaining fields. A new field follows the field that precedes it in want.
func mergeMapping(old, want *yamlv3.Node) {
	fields := map[string]int{}
	for i := 0; i < len(want.Content); i += 2 {
		fields[want.Content[i].Value] = i
	}
	var kept []*yamlv3.Node
	position := map[string]int{} // in kept, behind the field
	for i := 0; i < len(old.Content); i += 2 {
		key := old.Content[i]
		if at, stays := fields[key.Value]; stays {
			kept = append(kept, key, mergeNode(old.Content[i+1], want.Content[at+1]))
			position[key.Value] = len(kept)
		}
	}
	added := map[int][]*yamlv3.Node{}
	behind := 0
	for i := 0; i < len(want.Content); i += 2 {
		if at, exists := position[want.Content[i].Value]; exists {
			behind = at
			continue
		}
		added[behind] = append(added[behind], want.Content[i], want.Content[i+1])
	}
	old.Content = append([]*yamlv3.Node(nil), added[0]...)
	for i := 0; i < len(kept); i += 2 {
		old.Content = append(append(old.Content, kept[i], kept[i+1]), added[i+2]...)
	}
}

// mergeSequence matches each item with an old one: an equal item, an item of the same name, or the item at the same
// index.
func mergeSequence(old, want *yamlv3.Node) {
	same, named := map[string][]int{}, map[string]int{}
	for i, item := range old.Content {
		text := canonical(item)
		same[text] = append(same[text], i)
		if name := nameOf(item); name != "" {
			named[name] = i
		}
	}
	used := make([]bool, len(old.Content))
	items := make([]*yamlv3.Node, len(want.Content))
	for i, item := range want.Content {
		text := canonical(item)
		if from := same[text]; len(from) > 0 {
			items[i], same[text], used[from[0]] = old.Content[from[0]], from[1:], true
		}
	}
	for i, item := range want.Content {
		if items[i] != nil {
			continue
		}
		at, found := named[nameOf(item)]
		if !found || used[at] {
			at, found = i, i < len(old.Content) && nameOf(old.Content[i]) == "" && nameOf(item) == ""
		}
		if items[i] = item; found && !used[at] {
			items[i], used[at] = mergeNode(old.Content[at], item), true
		}
	}
	old.Content = items
}

// nameOf returns the name that identifies an item of a list, empty if it has none.
func nameOf(item *yamlv3.Node) string {
	if item.Kind != yamlv3.MappingNode {
		return ""
	}
	for i := 0; i < len(item.Content); i += 2 {
		if item.Content[i].Value == "name" && item.Content[i+1].Kind == yamlv3.ScalarNode {
			return item.Content[i+1].Value
		}
	}
	return ""
}

// canonical returns the same text for nodes with equal content in equal order.
func canonical(node *yamlv3.Node) string {
	var b strings.Builder
	writeCanonical(&b, node)
	return b.String()
}

func writeCanonical(b *strings.Builder, node *yamlv3.Node) {
	b.WriteString(node.ShortTag())
	b.WriteByte(' ')
	if node.Kind == yamlv3.ScalarNode {
		text, _ := json.Marshal(node.Value) // a string can always be marshalled
		b.Write(text)
		return
	}
	b.WriteByte('[')
	for _, child := range node.Content {
		writeCanonical(b, child)
		b.WriteByte(' ')
	}
	b.WriteByte(']')
}
