package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/base/yamlsize"
)

// metadataFields are the metadata fields that people write, in their order. All other metadata is bookkeeping.
var metadataFields = []string{"name", "namespace", "labels", "annotations", "ownerReferences", "finalizers"}

// firstFields come first in a file, in this order.
var firstFields = []string{"apiVersion", "kind", "metadata"}

// member is one member of a JSON object whose order matters.
type member struct {
	name  string
	value json.RawMessage
}

// members reads a JSON object. ok is false if data is anything else.
func members(data []byte) (list []member, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, false
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, false
		}
		list = append(list, member{name.(string), value})
	}
	if _, err := decoder.Token(); err != nil {
		return nil, false
	}
	_, err := decoder.Token()
	return list, err == io.EOF
}

// visible returns the part of an object that people see, in the order in which they would write it. more reports
// whether the object has other content.
func visible(data []byte, hideStatus bool) (shown []member, more, ok bool) {
	all, ok := members(data)
	if !ok {
		return nil, false, false
	}
	for _, m := range all {
		switch m.name {
		case "metadata":
			metadata, isObject := members(m.value)
			if !isObject {
				return nil, false, false
			}
			kept := slices.DeleteFunc(slices.Clone(metadata), func(m member) bool { return !slices.Contains(metadataFields, m.name) })
			more = more || len(kept) < len(metadata)
			sortBy(kept, metadataFields)
			m.value = jsonObject(kept)
		case "status":
			if hideStatus {
				more = true
				continue
			}
		}
		shown = append(shown, m)
	}
	sortBy(shown, firstFields)
	return shown, more, true
}

// sortBy moves the members with the given names to the front.
func sortBy(list []member, names []string) {
	rank := func(m member) int {
		if i := slices.Index(names, m.name); i >= 0 {
			return i
		}
		return len(names)
	}
	slices.SortStableFunc(list, func(a, b member) int { return rank(a) - rank(b) })
}

func jsonObject(list []member) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			panic(err) // a string can always be marshalled
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// encodeYAML returns the object file for the visible part of an object.
func encodeYAML(shown []member) ([]byte, error) {
	node, err := yamlOf(shown)
	if err != nil {
		return nil, err
	}
	return encodeNode(node)
}

func yamlOf(shown []member) (*yamlv3.Node, error) {
	return nodeOf(json.NewDecoder(bytes.NewReader(jsonObject(shown))))
}

func encodeNode(node *yamlv3.Node) ([]byte, error) {
	var b bytes.Buffer
	encoder := yamlv3.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return nil, err
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// nodeOf reads the next JSON value as YAML, in its order.
func nodeOf(decoder *json.Decoder) (*yamlv3.Node, error) {
	decoder.UseNumber()
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		node := &yamlv3.Node{Kind: yamlv3.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			node = &yamlv3.Node{Kind: yamlv3.MappingNode, Tag: "!!map"}
		}
		for decoder.More() {
			// The decoder returns the names of members as values, too.
			child, err := nodeOf(decoder)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if len(node.Content) == 0 {
			node.Style = yamlv3.FlowStyle
		}
		_, err := decoder.Token()
		return node, err
	case string:
		return stringNode(t), nil
	case json.Number:
		return &yamlv3.Node{Kind: yamlv3.ScalarNode, Value: t.String()}, nil
	case bool:
		return &yamlv3.Node{Kind: yamlv3.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(t)}, nil
	default:
		return &yamlv3.Node{Kind: yamlv3.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
}

// stringNode writes a string so that every YAML reader takes it for a string: text that YAML 1.1 takes for a boolean,
// a number or a date is quoted.
func stringNode(s string) *yamlv3.Node {
	node := &yamlv3.Node{Kind: yamlv3.ScalarNode, Tag: "!!str", Value: s}
	switch {
	case strings.Contains(strings.TrimSuffix(s, "\n"), "\n") && literal(s):
		node.Style = yamlv3.LiteralStyle
	case !plain(s):
		node.Style = yamlv3.DoubleQuotedStyle
	}
	return node
}

// literal reports whether a text of several lines can be written in literal style.
func literal(s string) bool {
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimRight(line, " \t") != line {
			return false
		}
	}
	return s[0] != ' ' && s[0] != '\n' && !strings.HasSuffix(s, "\n\n") && strings.IndexFunc(s, func(r rune) bool {
		return r != '\n' && (r < ' ' || r > '~' && r < 0xa0 || r == utf8.RuneError || r == 0x2028 || r == 0x2029 || r == 0xfeff)
	}) < 0
}

// words are the words that YAML 1.1 takes for other types than strings, in lower case.
var words = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// plain reports whether a string needs no quotes: it begins with a letter, and the rest is harmless.
func plain(s string) bool {
	if s == "" || !isLetter(s[0]) && s[0] != '/' && s[0] != '_' || slices.Contains(words, strings.ToLower(s)) {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case isLetter(c), c >= '0' && c <= '9', strings.IndexByte("-_./+=@%(),;$^&*!?~<>'\"|{}[]\\", c) >= 0:
		case c == ' ' && i < len(s)-1 && s[i+1] != '#' && s[i+1] != ' ':
		case c == ':' && i < len(s)-1 && s[i+1] != ' ':
		default:
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// maxFile is the largest size of an object file, in bytes. The API accepts no larger objects either.
const maxFile = 3 << 20

// parse reads an object file as JSON. The error is for the person who wrote it.
func parse(data []byte) ([]byte, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8")
	}
	if tooLarge := (*yamlsize.TooLargeError)(nil); errors.As(yamlsize.Check(data, maxFile), &tooLarge) {
		return nil, fmt.Errorf("larger than %d MiB after the expansion of its aliases", maxFile>>20)
	}
	if err := checkDocuments(data); err != nil {
		return nil, err
	}
	out, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("not YAML: %s", oneLine(err))
	}
	if _, ok := members(out); !ok {
		return nil, errors.New("not an object: it must have apiVersion, kind, metadata and so on")
	}
	return out, nil
}

// checkDocuments returns an error unless data holds exactly one document.
func checkDocuments(data []byte) error {
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	for n := 0; ; {
		var document yamlv3.Node
		err := decoder.Decode(&document)
		if err == io.EOF {
			if n == 0 {
				return errEmpty
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("not YAML: %s", oneLine(err))
		}
		if len(document.Content) == 1 && document.Content[0].Tag == "!!null" && document.Content[0].Value == "" {
			continue // nothing after a separator
		}
		if n++; n > 1 {
			return errors.New("more than one document: every object must have a separate file")
		}
	}
}

var errEmpty = errors.New("empty")

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// identity is the identity that a document claims.
type identity struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// identify checks that a document belongs to its file. It returns the key, and the document completed by the
// namespace that the directory implies.
func identify(document []byte, r *resource, dir, stem string) (key string, complete []byte, err error) {
	var id identity
	if err := json.Unmarshal(document, &id); err != nil {
		return "", nil, fmt.Errorf("metadata: %s", oneLine(err))
	}
	name, namespace := id.Metadata.Name, id.Metadata.Namespace
	if err := checkName("metadata.name", name); err != nil {
		return "", nil, err
	}
	if want := fileName(name); want != stem {
		return "", nil, fmt.Errorf("metadata.name is %q: the file must have the name %s%s", name, want, yamlSuffix)
	}
	if !r.Namespaced {
		if namespace != "" {
			return "", nil, fmt.Errorf("metadata.namespace is %q, but %s are cluster-scoped", namespace, r.dir())
		}
		return r.key("", name), document, nil
	}
	if namespace == "" {
		// A namespace's name is always its directory's name.
		namespace = dir
		if document, err = withNamespace(document, namespace); err != nil {
			return "", nil, err
		}
	}
	if fileName(namespace) != dir {
		return "", nil, fmt.Errorf("metadata.namespace is %q, but the file is in the directory %s", namespace, dir)
	}
	return r.key(namespace, name), document, nil
}

func withNamespace(document []byte, namespace string) ([]byte, error) {
	all, _ := members(document)
	for i, m := range all {
		if m.name != "metadata" {
			continue
		}
		metadata, ok := members(m.value)
		if !ok {
			return nil, errors.New("metadata is not an object")
		}
		metadata = slices.DeleteFunc(metadata, func(m member) bool { return m.name == "namespace" })
		quoted, err := json.Marshal(namespace)
		if err != nil {
			return nil, err
		}
		all[i].value = jsonObject(append(metadata, member{"namespace", quoted}))
	}
	return jsonObject(all), nil
}
