package convert

import (
	"reflect"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/define"
)

// described adds what kubebuilder markers say to definitions, which were made from Go
// types and know nothing of them.
type described struct {
	definitions map[string]common.OpenAPIDefinition
	names       map[string]string // by reference
	done        map[string]bool
}

// supplied begins the names of definitions that all kinds share, and that are no matter
// of markers.
const supplied = "io.k8s.apimachinery."

func describe(definitions map[string]common.OpenAPIDefinition, ref common.ReferenceCallback) *described {
	d := &described{definitions: definitions, names: map[string]string{}, done: map[string]bool{}}
	for name := range definitions {
		reference := ref(name)
		d.names[reference.String()] = name
	}
	return d
}

// version describes the definition of a version's Go type by the schema of its markers,
// if it has any.
func (d *described) version(v *define.Version) {
	if v.Structural != nil {
		d.definition(util.GetCanonicalTypeName(reflect.New(v.Type).Interface()), v.Structural.Definition.Spec.Versions[0].Schema.OpenAPIV3Schema)
	}
}

func (d *described) definition(name string, markers *apiextensionsv1.JSONSchemaProps) {
	definition, ok := d.definitions[name]
	if !ok || d.done[name] || strings.HasPrefix(name, supplied) {
		return
	}
	d.done[name] = true
	if markers.Properties == nil {
		return
	}
	definition.Schema.Required = markers.Required
	d.properties(&definition.Schema, markers)
	d.definitions[name] = definition
}

func (d *described) properties(s *spec.Schema, markers *apiextensionsv1.JSONSchemaProps) {
	for name, property := range s.Properties {
		if said, ok := markers.Properties[name]; ok {
			d.value(&property, &said)
			s.Properties[name] = property
		}
	}
}

func (d *described) value(s *spec.Schema, markers *apiextensionsv1.JSONSchemaProps) {
	if markers.Default != nil {
		s.Default = valueOf(markers.Default.Raw)
	}
	if reference := s.Ref.String(); reference != "" {
		d.definition(d.names[reference], markers)
		return
	}
	if len(markers.Enum) > 0 {
		s.Enum = make([]any, len(markers.Enum))
		for i, e := range markers.Enum {
			s.Enum[i] = valueOf(e.Raw)
		}
	}
	if markers.Format != "" {
		s.Format = markers.Format
	}
	if markers.Pattern != "" {
		s.Pattern = markers.Pattern
	}
	s.Nullable = s.Nullable || markers.Nullable
	s.UniqueItems = s.UniqueItems || markers.UniqueItems
	set(&s.MinLength, markers.MinLength)
	set(&s.MaxLength, markers.MaxLength)
	set(&s.MinItems, markers.MinItems)
	set(&s.MaxItems, markers.MaxItems)
	set(&s.MinProperties, markers.MinProperties)
	set(&s.MaxProperties, markers.MaxProperties)
	set(&s.MultipleOf, markers.MultipleOf)
	if set(&s.Minimum, markers.Minimum) {
		s.ExclusiveMinimum = markers.ExclusiveMinimum
	}
	if set(&s.Maximum, markers.Maximum) {
		s.ExclusiveMaximum = markers.ExclusiveMaximum
	}
	d.properties(s, markers)
	if s.Items != nil && s.Items.Schema != nil && markers.Items != nil && markers.Items.Schema != nil {
		d.value(s.Items.Schema, markers.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil && markers.AdditionalProperties != nil && markers.AdditionalProperties.Schema != nil {
		d.value(s.AdditionalProperties.Schema, markers.AdditionalProperties.Schema)
	}
}

// set sets what there is a value for.
func set[T any](to **T, value *T) bool {
	if value != nil {
		*to = value
	}
	return value != nil
}

// valueOf reads JSON with whole numbers as such. What does not parse is nothing: the
// definition has been read before.
func valueOf(raw []byte) any {
	var value any
	_ = utiljson.Unmarshal(raw, &value)
	return value
}
