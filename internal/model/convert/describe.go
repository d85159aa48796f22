package convert

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/structural"
)

// describer turns the definitions of kinds with kubebuilder markers into the definitions of a CRD server. Definitions
// that are generated from Go types do not include the markers. Their type names, descriptions and patch strategies
// are kept.
//
// A Go type gets its own definition from the markers at its first occurrence. If the markers of another field differ,
// the type is inlined there.
type describer struct {
	format structural.Format
	made   map[string]common.OpenAPIDefinition
	names  map[string]string // by reference
	// published are the schemas, without references, with which types were described.
	published map[string]spec.Schema
	described map[string]common.OpenAPIDefinition
}

// supplied are the prefixes of the names of Kubernetes' own types. Their definitions are shared, so a kind's markers
// for them are inlined.
var supplied = [...]string{"io.k8s.api.", "io.k8s.apimachinery.", "io.k8s.apiextensions-apiserver."}

const (
	typeMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta"
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// describe replaces the definitions of all versions and subresource messages that have markers.
func describe(definitions map[string]common.OpenAPIDefinition, ref common.ReferenceCallback, format structural.Format,
	versions []*define.Version, messages ...*define.Subresource) {
	d := &describer{format: format, made: definitions, names: map[string]string{},
		published: map[string]spec.Schema{}, described: map[string]common.OpenAPIDefinition{}}
	for name := range definitions {
		reference := ref(name)
		d.names[reference.String()] = name
	}
	for _, v := range versions {
		if v.Structural != nil {
			d.kind(v, ref)
		}
	}
	for _, s := range messages {
		if s.Structural != nil {
			d.message(s)
		}
	}
	maps.Copy(definitions, d.described)
}

// message describes the message type of a subresource.
func (d *describer) message(s *define.Subresource) {
	name := util.GetCanonicalTypeName(reflect.New(s.Object).Interface())
	made, ok := d.made[name]
	if _, done := d.published[name]; !ok || done {
		return
	}
	published, native := s.Structural.Published(d.format)
	d.published[name] = published
	described := d.value(&made.Schema, published)
	for _, field := range []string{"apiVersion", "kind", "metadata"} {
		if of, ok := made.Schema.Properties[field]; ok && native {
			described.SetProperty(field, withoutDefault(of))
		}
	}
	d.keep(name, described)
}

// kind describes the objects and the lists of a version.
func (d *describer) kind(v *define.Version, ref common.ReferenceCallback) {
	name := util.GetCanonicalTypeName(reflect.New(v.Type).Interface())
	made, ok := d.made[name]
	if _, done := d.published[name]; !ok || done {
		return
	}
	published, native := v.Structural.Published(d.format)
	d.published[name] = published
	d.embed(&published, ref(objectMeta))
	described := d.value(&made.Schema, published)
	if native {
		for _, field := range []string{"apiVersion", "kind", "metadata"} {
			described.SetProperty(field, withoutDefault(made.Schema.Properties[field]))
		}
	}
	listName := util.GetCanonicalTypeName(reflect.New(v.ListType).Interface())
	list := d.made[listName].Schema
	list.Properties = maps.Clone(list.Properties)
	list.SetProperty("metadata", withoutDefault(list.Properties["metadata"]))
	if items := list.Properties["items"]; items.Items != nil && items.Items.Schema != nil {
		item := withoutDefault(*items.Items.Schema)
		items.Items = &spec.SchemaOrArray{Schema: &item}
		list.SetProperty("items", items)
	}
	if paths := v.Structural.SelectableFields(); len(paths) > 0 {
		fields := make([]any, len(paths))
		for i, path := range paths {
			fields[i] = map[string]any{"fieldPath": path}
		}
		described.AddExtension(endpoints.RouteMetaSelectableFields, fields)
		list.Extensions = maps.Clone(list.Extensions)
		list.AddExtension(endpoints.RouteMetaSelectableFields, fields)
	}
	d.keep(name, described)
	d.keep(listName, list)
}

// named describes a Go type, and reports whether its definition equals published.
func (d *describer) named(name string, published spec.Schema) bool {
	made, ok := d.made[name]
	if !ok || !published.Type.Contains("object") || len(published.Properties) == 0 ||
		slices.ContainsFunc(supplied[:], func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return false
	}
	published.Default, published.Nullable = nil, false // they are written next to the reference
	if of, ok := d.published[name]; ok {
		return reflect.DeepEqual(of, published)
	}
	d.published[name] = published
	d.keep(name, d.value(&made.Schema, published))
	return true
}

// value describes a value. made is the schema generated from its Go type, or nil.
func (d *describer) value(made *spec.Schema, published spec.Schema) spec.Schema {
	if made == nil {
		return published
	}
	if reference := made.Ref.String(); reference != "" {
		name := d.names[reference]
		if d.named(name, published) {
			return spec.Schema{
				SchemaProps: spec.SchemaProps{Ref: made.Ref, Description: made.Description, Default: published.Default, Nullable: published.Nullable},
			}
		}
		of := d.made[name].Schema
		if made.Description != "" || len(of.Properties) == 0 {
			of.Description = made.Description
		}
		return d.value(&of, published)
	}
	described := published
	if made.Description != "" {
		described.Description = made.Description
	}
	described.Extensions = maps.Clone(published.Extensions)
	for key, value := range made.Extensions {
		if strings.HasPrefix(key, "x-kubernetes-patch-") {
			described.AddExtension(key, value)
		}
	}
	if len(published.Properties) > 0 {
		described.Properties = map[string]spec.Schema{}
		for _, name := range slices.Sorted(maps.Keys(published.Properties)) {
			var field *spec.Schema
			if f, ok := made.Properties[name]; ok {
				field = &f
			}
			described.Properties[name] = d.value(field, published.Properties[name])
		}
	}
	if inner := published.Items; inner != nil && inner.Schema != nil && made.Items != nil {
		item := d.value(made.Items.Schema, *inner.Schema)
		described.Items = &spec.SchemaOrArray{Schema: &item}
	}
	if inner := published.AdditionalProperties; inner != nil && inner.Schema != nil && made.AdditionalProperties != nil {
		element := d.value(made.AdditionalProperties.Schema, *inner.Schema)
		described.AdditionalProperties = &spec.SchemaOrBool{Allows: inner.Allows, Schema: &element}
	}
	return described
}

// keep makes a schema the definition of a name.
func (d *describer) keep(name string, schema spec.Schema) {
	needs := map[string]bool{}
	walker := schemamutation.Walker{
		SchemaCallback: schemamutation.SchemaCallBackNoop,
		RefCallback: func(ref *spec.Ref) *spec.Ref {
			if name, ok := d.names[ref.String()]; ok {
				needs[name] = true
			}
			return ref
		},
	}
	walker.WalkSchema(&schema)
	d.described[name] = common.OpenAPIDefinition{Schema: schema, Dependencies: slices.Sorted(maps.Keys(needs))}
}

// embed adds the common metadata schema to objects within objects.
func (d *describer) embed(s *spec.Schema, metadata spec.Ref) {
	if s == nil {
		return
	}
	for name, property := range s.Properties {
		d.embed(&property, metadata)
		s.Properties[name] = property
	}
	if s.Items != nil {
		d.embed(s.Items.Schema, metadata)
	}
	if s.AdditionalProperties != nil {
		d.embed(s.AdditionalProperties.Schema, metadata)
	}
	if unknown, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); unknown && d.format == structural.OpenAPIv2 {
		return // kubectl would reject unknown fields
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); embedded {
		for _, field := range []string{"kind", "apiVersion"} {
			s.SetProperty(field, d.made[typeMeta].Schema.Properties[field])
			if !slices.Contains(s.Required, field) {
				s.Required = append(s.Required, field)
			}
		}
		s.SetProperty("metadata", spec.Schema{SchemaProps: spec.SchemaProps{Ref: metadata}})
	}
}

func withoutDefault(s spec.Schema) spec.Schema {
	s.Default = nil
	return s
}

// dropContradictions removes defaults of required fields that violate the field's own schema. They were generated
// from the zero values of Go types.
func dropContradictions(definition common.OpenAPIDefinition) {
	for name, s := range definition.Schema.Properties {
		switch s.Default {
		case "", int64(0), 0, float64(0), false:
		default:
			continue
		}
		if !validate.NewSchemaValidator(&s, nil, name, strfmt.Default).Validate(s.Default).IsValid() {
			definition.Schema.Properties[name] = withoutDefault(s)
		}
	}
}
