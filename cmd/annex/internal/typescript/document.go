package typescript

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// document holds the parts of an OpenAPI v3 document that matter for clients.
type document struct {
	OpenAPI    string                                `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

func readDocument(text []byte) (*document, error) {
	d := &document{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	if !strings.HasPrefix(d.OpenAPI, "3.") {
		return nil, errors.New("no OpenAPI 3 document: it has no field openapi with a version 3")
	}
	return d, nil
}

// operation is a method of a path.
type operation struct {
	Description string      `json:"description"`
	Tags        []string    `json:"tags"`
	Parameters  []parameter `json:"parameters"`
	RequestBody struct {
		Content map[string]media `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content map[string]media `json:"content"`
	} `json:"responses"`
	Action string            `json:"x-kubernetes-action"`
	Kind   *groupVersionKind `json:"x-kubernetes-group-version-kind"`
}

type media struct {
	Schema *schema `json:"schema"`
}

type parameter struct {
	Name        string  `json:"name"`
	In          string  `json:"in"`
	Description string  `json:"description"`
	Schema      *schema `json:"schema"`
}

type groupVersionKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// operation returns a method of a path, or nil. The parameters of the path are not among its parameters.
func (d *document) operation(path, method string) *operation {
	raw, ok := d.Paths[path][method]
	if !ok {
		return nil
	}
	o := &operation{}
	if json.Unmarshal(raw, o) != nil {
		return nil
	}
	return o
}

// answer returns the schema of a successful response in JSON, or nil, and the other media types that it may have.
func (o *operation) answer() (found *schema, others []string) {
	for _, code := range []string{"200", "201", "202"} {
		for name, m := range o.Responses[code].Content {
			if name == "application/json" || name == "*/*" && m.Schema != nil && m.Schema.Ref != "" {
				found = m.Schema
				continue
			}
			others = append(others, name)
		}
		if found != nil || len(others) > 0 {
			slices.Sort(others)
			return found, others
		}
	}
	return nil, nil
}

// body returns the schema of the request's body, or nil.
func (o *operation) body() *schema {
	for _, name := range []string{"application/json", "*/*"} {
		if m, ok := o.RequestBody.Content[name]; ok {
			return m.Schema
		}
	}
	return nil
}

func (o *operation) parameter(name string) *parameter {
	i := slices.IndexFunc(o.Parameters, func(p parameter) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &o.Parameters[i]
}

// schema is the schema of a value.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Description          string             `json:"description"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	Items                *schema            `json:"items"`
	AdditionalProperties *additional        `json:"additionalProperties"`
	AllOf                []*schema          `json:"allOf"`
	AnyOf                []*schema          `json:"anyOf"`
	OneOf                []*schema          `json:"oneOf"`
	Enum                 []json.RawMessage  `json:"enum"`
	Default              json.RawMessage    `json:"default"`
	Nullable             bool               `json:"nullable"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string"`
	PreservesUnknown     bool               `json:"x-kubernetes-preserve-unknown-fields"`
	EmbeddedResource     bool               `json:"x-kubernetes-embedded-resource"`
	Kinds                []groupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// additional is the schema of additional properties: true, false or a schema.
type additional struct {
	*schema
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *additional) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "true":
		a.schema = &schema{}
		return nil
	case "false":
		return nil
	}
	a.schema = &schema{}
	return json.Unmarshal(text, a.schema)
}

const refPrefix = "#/components/schemas/"

// reference returns the name of the schema that s stands for: a reference, or a reference with a default or a text
// of its own.
func (s *schema) reference() string {
	if name, ok := strings.CutPrefix(s.Ref, refPrefix); ok {
		return strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
	}
	if len(s.AllOf) == 1 && len(s.Properties) == 0 {
		return s.AllOf[0].reference()
	}
	return ""
}

// isGiven reports whether a server always answers a property: it is required, or has a default.
func (s *schema) isGiven(name string) bool {
	return slices.Contains(s.Required, name) || s.Properties[name].Default != nil
}

// decodeParameters returns the parameters of a path; none if there are none.
func decodeParameters(raw json.RawMessage) []parameter {
	var all []parameter
	if len(raw) > 0 && json.Unmarshal(raw, &all) != nil {
		return nil
	}
	return all
}
