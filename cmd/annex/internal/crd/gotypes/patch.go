package gotypes

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// patch is a merge patch of a schema, for constraints that no kubebuilder marker can express: the value
// of +annex:schema. Its values are those of encoding/json, and patches.
type patch map[string]any

// markers returns the marker of a patch, and none for an empty patch.
func (p patch) markers() []string {
	if len(p) == 0 {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil // cannot happen: it consists of parsed JSON
	}
	return []string{"annex:schema=" + string(text)}
}

// with returns the patch with changes to the object of a key.
func (p patch) with(key string, changes ...patch) patch {
	for _, change := range changes {
		if len(change) == 0 {
			continue
		}
		before, _ := p[key].(patch)
		inner := patch{}
		maps.Copy(inner, before)
		maps.Copy(inner, change)
		p = p.set(key, inner)
	}
	return p
}

// set returns the patch with the value of a key replaced.
func (p patch) set(key string, value any) patch {
	if p == nil {
		p = patch{}
	}
	p[key] = value
	return p
}

// content returns a schema as decoded JSON, without descriptions.
func content(s *apiextensionsv1.JSONSchemaProps) map[string]any {
	data, err := json.Marshal(s)
	if err != nil {
		return nil // cannot happen: it was read from JSON
	}
	var all map[string]any
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	withoutDescriptions(all)
	return all
}

// withoutDescriptions removes descriptions, but not properties of that name, whose schemas are objects.
func withoutDescriptions(value any) {
	switch value := value.(type) {
	case map[string]any:
		if _, ok := value["description"].(string); ok {
			delete(value, "description")
		}
		for key, inner := range value {
			if key != "default" && key != "example" && key != "enum" {
				withoutDescriptions(inner)
			}
		}
	case []any:
		for _, inner := range value {
			withoutDescriptions(inner)
		}
	}
}

// limits are the limiting keywords for each type of values; each has a marker.
var limits = map[values][]string{
	ofText:   {"minLength", "maxLength", "pattern"},
	ofNumber: {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
	ofList:   {"minItems", "maxItems", "uniqueItems"},
	ofObject: {"minProperties", "maxProperties"},
}

// only returns a schema without the limits for other types of values.
func only(s *apiextensionsv1.JSONSchemaProps, applicable values) *apiextensionsv1.JSONSchemaProps {
	rest := *s
	if applicable != ofText {
		rest.MinLength, rest.MaxLength, rest.Pattern = nil, nil, ""
	}
	if applicable != ofNumber {
		rest.Minimum, rest.Maximum, rest.ExclusiveMinimum, rest.ExclusiveMaximum, rest.MultipleOf = nil, nil, false, false, nil
	}
	if applicable != ofList {
		rest.MinItems, rest.MaxItems, rest.UniqueItems = nil, nil, false
	}
	if applicable != ofObject {
		rest.MinProperties, rest.MaxProperties = nil, nil
	}
	return &rest
}

// remainder returns the constraints of a schema for which facets has no marker: limits for other types of values,
// which have no effect, and combinations of schemas.
func remainder(s *apiextensionsv1.JSONSchemaProps, applicable values) patch {
	keys := []string{"allOf", "anyOf", "oneOf", "not"}
	if s.XIntOrString {
		keys = []string{"allOf", "oneOf", "not"}
	}
	if applicable != ofAny {
		keys = append(keys, "x-kubernetes-embedded-resource") // its marker is accepted on fields only
	}
	for of, names := range limits {
		if of != applicable {
			keys = append(keys, names...)
		}
	}
	return pick(content(s), keys)
}

func pick(all map[string]any, keys []string) patch {
	var p patch
	for _, key := range keys {
		if value, ok := all[key]; ok {
			p = p.set(key, value)
		}
	}
	return p
}

// ofFields are the keywords whose markers are accepted on fields only.
var ofFields = []string{"nullable", "default", "title", "example", "externalDocs"}

// onlyOfFields returns those keywords of a schema of items or values.
func onlyOfFields(s *apiextensionsv1.JSONSchemaProps) patch {
	return pick(content(s), ofFields)
}

// implied are the schemas that controller-tools uses for types of other packages.
var implied = map[string]*apiextensionsv1.JSONSchemaProps{
	"runtime.RawExtension": {Type: "object", XPreserveUnknownFields: new(true)},
	"apiextensionsv1.JSON": {XPreserveUnknownFields: new(true)},
	"metav1.Time":          {Type: "string", Format: "date-time"},
	"metav1.ObjectMeta":    {Type: "object"},
	"intstr.IntOrString":   {XIntOrString: true, AnyOf: integerOrString},
	"resource.Quantity":    {XIntOrString: true, AnyOf: integerOrString, Pattern: quantityPattern},
}

const quantityPattern = "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$"

var integerOrString = []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}

// ownSchema returns the patch that turns the schema of an opaque type into s.
func ownSchema(expression string, s *apiextensionsv1.JSONSchemaProps) patch {
	from, to := content(implied[expression]), content(s)
	var p patch
	for key, value := range to {
		if !reflect.DeepEqual(from[key], value) {
			p = p.set(key, value)
		}
	}
	for key := range from {
		if _, ok := to[key]; !ok {
			p = p.set(key, nil)
		}
	}
	return p
}

// opaque returns a Go type of another package. The markers express the given keywords; the patch expresses the rest
// of the schema.
func opaque(expression string, s *apiextensionsv1.JSONSchemaProps, marks []string, said ...string) goType {
	rest := ownSchema(expression, s)
	for _, key := range slices.Concat(said, ofFields, []string{"format", "enum", "x-kubernetes-validations",
		"x-kubernetes-embedded-resource"}) {
		delete(rest, key)
	}
	return goType{expression: expression, marks: marks, patch: rest, opaque: true}
}

// structPatch returns the patch of an object that becomes a struct.
func structPatch(s *apiextensionsv1.JSONSchemaProps) patch {
	p := remainder(s, ofObject)
	for _, name := range s.Required {
		if _, ok := s.Properties[name]; !ok {
			return p.set("required", content(s)["required"]) // no field can have the marker
		}
	}
	return p
}

// rootPatch is structPatch for a whole object, which has additional fields.
func rootPatch(s *apiextensionsv1.JSONSchemaProps) patch {
	p := structPatch(s)
	if slices.Contains(s.Required, "apiVersion") || slices.Contains(s.Required, "kind") {
		p = p.set("required", content(s)["required"])
	}
	if metadata, ok := s.Properties["metadata"]; ok {
		p = p.with("properties", patch(nil).with("metadata", ownSchema("metav1.ObjectMeta", &metadata)))
	}
	for key, value := range onlyOfFields(s) {
		p = p.set(key, value)
	}
	return p
}
