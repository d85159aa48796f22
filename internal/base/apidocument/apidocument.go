// Package apidocument joins the OpenAPI v3 documents of a server's own group versions into one.
//
// A server has a document for each group version, and another for its queries. Explorers and generators of clients
// want one document, without the groups that every server has.
package apidocument

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Index is the path of the list of a server's documents.
const Index = "/openapi/v3"

// Document is an OpenAPI v3 document. Paths and schemas are as their servers wrote them.
type Document struct {
	OpenAPI    string                     `json:"openapi"`
	Info       Info                       `json:"info"`
	Paths      map[string]json.RawMessage `json:"paths"`
	Components Components                 `json:"components"`
}

// Info is the name of a document.
type Info struct {
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Components are the parts to which a document refers.
type Components struct {
	Schemas         map[string]json.RawMessage `json:"schemas,omitempty"`
	SecuritySchemes map[string]json.RawMessage `json:"securitySchemes,omitempty"`
}

// IsForeign reports whether a group is among those that Kubernetes itself has: a server's own groups are the others.
func IsForeign(group string) bool {
	switch group {
	case "", "core", "apps", "autoscaling", "batch", "extensions", "policy":
		return true
	}
	return strings.HasSuffix(group, ".k8s.io") || group == "k8s.io"
}

// Join reads the documents of the groups for which own returns true, those of queries included, and joins them. read
// returns the answer to a GET. Where two documents have the same path or schema, the first by name wins. The title and
// the version are those of the first document; an empty document has none.
func Join(read func(path string) ([]byte, error), own func(group string) bool) (*Document, error) {
	text, err := read(Index)
	if err != nil {
		return nil, fmt.Errorf("read the list of OpenAPI documents: %w", err)
	}
	var index struct {
		Paths map[string]struct {
			URL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("read the list of OpenAPI documents at %s: %w", Index, err)
	}
	all := &Document{OpenAPI: "3.0.0", Paths: map[string]json.RawMessage{}, Components: Components{
		Schemas: map[string]json.RawMessage{}, SecuritySchemes: map[string]json.RawMessage{},
	}}
	for _, name := range slices.Sorted(maps.Keys(index.Paths)) {
		if group, ok := groupOf(name); !ok || !own(group) {
			continue
		}
		text, err := read(index.Paths[name].URL)
		if err != nil {
			return nil, fmt.Errorf("read the OpenAPI document of %s: %w", name, err)
		}
		d := &Document{}
		if err := json.Unmarshal(text, d); err != nil {
			return nil, fmt.Errorf("read the OpenAPI document of %s: %w", name, err)
		}
		if all.Info.Title == "" {
			all.Info = d.Info
		}
		add(all.Paths, d.Paths)
		add(all.Components.Schemas, d.Components.Schemas)
		add(all.Components.SecuritySchemes, d.Components.SecuritySchemes)
	}
	return all, nil
}

// groupOf returns the group of a document: of a group version, or of the queries of one, behind any prefix.
func groupOf(name string) (string, bool) {
	words := strings.Split(name, "/")
	switch {
	case len(words) == 2 && words[0] == "api":
		return "", true
	case len(words) >= 3:
		return words[len(words)-2], true
	}
	return "", false
}

func add(to, from map[string]json.RawMessage) {
	for name, value := range from {
		if _, ok := to[name]; !ok {
			to[name] = value
		}
	}
}

// Text returns the document as indented JSON.
func (d *Document) Text() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}
	return b.Bytes(), nil
}
