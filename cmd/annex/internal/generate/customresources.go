package generate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// The functions that return the schemas from markers, of kinds and of other objects.
const (
	customResourcesFunction = "customResources"
	messagesFunction        = "messageSchemas"
)

// markers loads the packages of the pass with kubebuilder markers for the markers' parser; the other generators do
// not understand markers. It returns nil if no package has any.
func (l *packageSet) markers() (*schema.Packages, error) {
	var paths []string
	for _, s := range l.sources {
		if s.group != "" && s.mentions("+kubebuilder:") {
			paths = append(paths, s.path)
		}
	}
	if len(paths) == 0 {
		return nil, nil
	}
	packages, err := schema.Load("", paths...)
	if err != nil {
		return nil, listProblem(err)
	}
	return packages, nil
}

// mentions reports whether a comment of the package contains the text.
func (s *source) mentions(text string) bool {
	for _, f := range s.files {
		for _, group := range f.Comments {
			for _, c := range group.List {
				if strings.Contains(c.Text, text) {
					return true
				}
			}
		}
	}
	return false
}

// customResources generates the functions that return the schemas from the package's markers, of its kinds and of its
// other objects, if it has markers.
func customResources(packages *schema.Packages, s *source, kinds, others []string) (*part, error) {
	if packages == nil || !slices.Contains(packages.Paths(), s.path) {
		return nil, nil
	}
	definitions, err := packages.Version(s.path)
	if err != nil || definitions == nil {
		return nil, markerProblems(err)
	}
	messages, err := packages.Messages(s.path, others)
	if err != nil {
		return nil, markerProblems(err)
	}
	var b strings.Builder
	b.WriteString("// customResources returns the CustomResourceDefinitions of this package's version, by kind.\n" +
		"func " + customResourcesFunction + "() map[string]string {\n\treturn map[string]string{\n")
	for _, kind := range kinds {
		definition, ok := definitions[kind]
		if !ok {
			fmt.Fprintf(&b, "\t\t%q: \"\", // skipped, by its markers\n", kind)
			continue
		}
		// The package may be served under a group other than its own.
		definition.Name = definition.Spec.Names.Plural + "." + s.group
		definition.Spec.Group, definition.Spec.Versions[0].Name = s.group, s.version
		text, err := definitionText(definition)
		if err != nil {
			return nil, fmt.Errorf("CustomResourceDefinition of %s: %w", kind, err)
		}
		fmt.Fprintf(&b, "\t\t%q: %s,\n", kind, literal(text))
	}
	b.WriteString("\t}\n}\n")
	if len(messages) > 0 {
		b.WriteString("\n// " + messagesFunction + " returns the schemas of this package's objects that are no kinds, by Go type.\n" +
			"func " + messagesFunction + "() map[string]string {\n\treturn map[string]string{\n")
		for _, name := range others {
			text, err := jsonText(messages[name])
			if err != nil {
				return nil, fmt.Errorf("schema of %s: %w", name, err)
			}
			fmt.Fprintf(&b, "\t\t%q: %s,\n", name, literal(text))
		}
		b.WriteString("\t}\n}\n")
	}
	return &part{name: "markers", body: b.String()}, nil
}

// markerProblems converts an error to Problems if the package is its cause.
func markerProblems(err error) error {
	problems := schema.ProblemsOf(err)
	if len(problems) == 0 {
		return err
	}
	all := make(Problems, len(problems))
	for i, p := range problems {
		all[i] = Problem{File: p.File, Line: p.Line, Column: p.Column, Message: p.Message}
	}
	return all
}

func literal(text string) string {
	if strconv.CanBackquote(strings.ReplaceAll(text, "\n", "")) {
		return "`" + text + "`"
	}
	return strconv.Quote(text)
}

func definitionText(definition apiextensionsv1.CustomResourceDefinition) (string, error) {
	return jsonText(struct {
		APIVersion string                                       `json:"apiVersion"`
		Kind       string                                       `json:"kind"`
		Metadata   map[string]any                               `json:"metadata"`
		Spec       apiextensionsv1.CustomResourceDefinitionSpec `json:"spec"`
	}{definition.APIVersion, definition.Kind, map[string]any{"name": definition.Name}, definition.Spec})
}

// jsonText encodes a value as JSON for review: a value that fits on a line is on one line.
func jsonText(value any) (string, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := layOut(&b, plain, 0); err != nil {
		return "", err
	}
	return b.String(), nil
}

// lineWidth bounds a line of JSON, without indentation.
const lineWidth = 120

// layOut writes JSON, with objects and arrays on one line if they fit.
func layOut(b *bytes.Buffer, value json.RawMessage, depth int) error {
	if len(value) <= lineWidth || value[0] != '{' && value[0] != '[' {
		b.Write(value)
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(value))
	if _, err := decoder.Token(); err != nil {
		return err
	}
	indent := "\n" + strings.Repeat("\t", depth)
	b.WriteByte(value[0])
	for first := true; decoder.More(); first = false {
		if !first {
			b.WriteByte(',')
		}
		b.WriteString(indent + "\t")
		if value[0] == '{' {
			key, err := decoder.Token()
			if err != nil {
				return err
			}
			quoted, err := json.Marshal(key)
			if err != nil {
				return err
			}
			b.Write(quoted)
			b.WriteString(": ")
		}
		var element json.RawMessage
		if err := decoder.Decode(&element); err != nil {
			return err
		}
		if err := layOut(b, element, depth+1); err != nil {
			return err
		}
	}
	b.WriteString(indent)
	b.WriteByte(value[len(value)-1])
	return nil
}
