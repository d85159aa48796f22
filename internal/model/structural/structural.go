// Package structural makes kinds obey the kubebuilder markers of their Go types, as a
// server of CustomResourceDefinitions would. The rules themselves are apiextensions'.
//
// Such a server works on documents, we on Go values, and a value does not tell a field
// that is absent from one that is empty. So the body of a request is captured in its
// context, see CaptureBody, and what is validated is that: see Document.
package structural

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Version is what the markers say about one version of a kind. It is safe for
// concurrent use.
type Version struct {
	// Definition has this one version.
	Definition apiextensionsv1.CustomResourceDefinition

	kind     schema.GroupVersionKind
	goType   reflect.Type
	fields   fields
	schema   *structuralschema.Structural
	raw      *structuralschema.Structural // as it is marked
	shape    *Shape                       // nil if there are no defaults
	defaults bool
	// concealing kinds have structs that strict decoding does not look into.
	concealing bool
	internal   *apiextensions.JSONSchemaProps
	rules      func() (rules, error)
	messages   func() (messageRules, error)
}

// rules are what objects are validated by. They take a while to compile, which the first
// object has to wait for.
type rules struct {
	document validation.SchemaValidator
	main     rest.RESTCreateUpdateStrategy
	status   rest.RESTUpdateStrategy
}

// New reads the definition that generated code has of a version of a kind, whose Go type
// is goType. If the definition says nothing of subresources, not even that there are
// none, status decides whether /status is served.
func New(kind schema.GroupVersionKind, goType reflect.Type, definition string, status bool) (*Version, error) {
	v := &Version{kind: kind, goType: goType, fields: fieldsOf(goType)}
	if err := json.Unmarshal([]byte(definition), &v.Definition); err != nil {
		return nil, fmt.Errorf("read the definition: %w", err)
	}
	if n := len(v.Definition.Spec.Versions); n != 1 || v.Definition.Spec.Versions[0].Name != kind.Version {
		return nil, fmt.Errorf("the definition is not of version %s alone", kind.Version)
	}
	if v.version().Subresources == nil && status {
		v.version().Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	}
	return v, v.compute()
}

// NewMessage reads the schema that generated code has of a Go type whose objects are sent but
// not stored, such as the requests of an action. Only ValidateMessage validates these.
func NewMessage(kind schema.GroupVersionKind, goType reflect.Type, schema string) (*Version, error) {
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal([]byte(schema), props); err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	v := &Version{kind: kind, goType: goType, fields: fieldsOf(goType)}
	v.Definition.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: kind.Version, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props},
	}}
	return v, v.compute()
}

// compute makes everything else of the schema in the definition.
func (v *Version) compute() error {
	props := v.version().Schema
	if props == nil || props.OpenAPIV3Schema == nil {
		return fmt.Errorf("the definition has no schema")
	}
	v.internal = &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		props.OpenAPIV3Schema,
		v.internal,
		nil,
	); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	s, err := structuralschema.NewStructural(v.internal)
	if err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	v.raw, v.schema = s, s.DeepCopy()
	if err := defaulting.PruneDefaults(v.schema); err != nil {
		return fmt.Errorf("defaults: %w", err)
	}
	v.defaults = hasDefaults(v.schema)
	v.concealing = v.fields.concealing(v.goType, v.schema, map[reflect.Type]bool{})
	v.shape = v.fields.shapeOf(v.goType, v.schema)
	v.rules, v.messages = sync.OnceValues(v.compile), sync.OnceValues(v.compileMessage)
	return nil
}

func (v *Version) version() *apiextensionsv1.CustomResourceDefinitionVersion {
	return &v.Definition.Spec.Versions[0]
}

// WithKind returns the same rules for a kind of another name.
func (v *Version) WithKind(kind schema.GroupVersionKind) *Version {
	other := &Version{Definition: *v.Definition.DeepCopy(), kind: kind, goType: v.goType, fields: v.fields, schema: v.schema, raw: v.raw,
		shape: v.shape, defaults: v.defaults, concealing: v.concealing, internal: v.internal}
	other.rules, other.messages = sync.OnceValues(other.compile), sync.OnceValues(other.compileMessage)
	return other
}

func hasDefaults(s *structuralschema.Structural) bool {
	if s == nil {
		return false
	}
	if s.Default.Object != nil || hasDefaults(s.Items) || s.AdditionalProperties != nil && hasDefaults(s.AdditionalProperties.Structural) {
		return true
	}
	for _, property := range s.Properties {
		if hasDefaults(&property) {
			return true
		}
	}
	return false
}

// compile makes the strategies that a server of the definition would.
func (v *Version) compile() (rules, error) {
	document, _, err := validation.NewSchemaValidator(v.internal)
	if err != nil {
		return rules{}, err
	}
	var status *apiextensions.CustomResourceSubresourceStatus
	var scale *apiextensions.CustomResourceSubresourceScale
	var statusDocument validation.SchemaValidator
	if sub := v.version().Subresources; sub != nil {
		if sub.Status != nil {
			status = &apiextensions.CustomResourceSubresourceStatus{}
			if s, ok := v.internal.Properties["status"]; ok {
				if statusDocument, _, err = validation.NewSchemaValidator(&s); err != nil {
					return rules{}, err
				}
			}
		}
		if sub.Scale != nil {
			scale = &apiextensions.CustomResourceSubresourceScale{}
			if err := apiextensionsv1.Convert_v1_CustomResourceSubresourceScale_To_apiextensions_CustomResourceSubresourceScale(
				sub.Scale,
				scale,
				nil,
			); err != nil {
				return rules{}, err
			}
		}
	}
	main := customresource.NewStrategy(nil, v.Namespaced(), v.kind, document, statusDocument, v.schema, status, scale, nil)
	return rules{document: document, main: main, status: customresource.NewStatusStrategy(main)}, nil
}

// Scoped reports whether the markers decide about the scope. Where they do not, SetScope does, before any object is validated.
func (v *Version) Scoped() bool { return v.Definition.Spec.Scope != "" }

// SetScope decides about the scope of a kind whose markers do not.
func (v *Version) SetScope(clusterScoped bool) {
	v.Definition.Spec.Scope = apiextensionsv1.NamespaceScoped
	if clusterScoped {
		v.Definition.Spec.Scope = apiextensionsv1.ClusterScoped
	}
}

// Namespaced says whether the kind's objects are in namespaces.
func (v *Version) Namespaced() bool {
	return v.Definition.Spec.Scope != apiextensionsv1.ClusterScoped
}

// Validate checks a document that is to be created, its metadata among the rest. The
// errors, and their order, are those of a server of the definition.
func (v *Version) Validate(ctx context.Context, doc map[string]any) field.ErrorList {
	r, err := v.rules()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return r.main.Validate(ctx, &unstructured.Unstructured{Object: doc})
}

// ValidateUpdate checks a document that is to replace old. What has not changed may break
// rules that are newer than it.
func (v *Version) ValidateUpdate(ctx context.Context, doc, old map[string]any) field.ErrorList {
	r, err := v.rules()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return r.main.ValidateUpdate(ctx, &unstructured.Unstructured{Object: doc}, &unstructured.Unstructured{Object: old})
}

// ValidateStatusUpdate is ValidateUpdate for a write of /status.
func (v *Version) ValidateStatusUpdate(ctx context.Context, doc, old map[string]any) field.ErrorList {
	r, err := v.rules()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return r.status.ValidateUpdate(ctx, &unstructured.Unstructured{Object: doc}, &unstructured.Unstructured{Object: old})
}

// fits says whether a document keeps to the schema, rules in CEL apart.
func (v *Version) fits(doc map[string]any) bool {
	r, err := v.rules()
	return err == nil && len(validation.ValidateCustomResource(nil, doc, r.document)) == 0
}

// prune removes fields that the schema does not have and, unless nulls is set, nulls that it does not allow.
func (v *Version) prune(doc map[string]any, nulls bool) error {
	pruning.Prune(doc, v.schema, true)
	if !nulls {
		defaulting.PruneNonNullableNullsWithoutDefaults(doc, v.schema)
	}
	// Not to be confused with nil as an error.
	if err := objectmeta.Coerce(nil, doc, v.schema, false, false); err != nil {
		return err
	}
	return nil
}

// Shape says where the version's Go type has fields with defaults; nil if nowhere.
func (v *Version) Shape() *Shape { return v.shape }

// Default fills the definition's defaults in where a field of an object is nil. A zero is
// a value: see Fill.
func (v *Version) Default(obj runtime.Object) {
	if v.shape.some(reflect.ValueOf(obj), absent) {
		v.fill(obj, everything{}, v.schema)
	}
}

// Fill fills the definition's defaults in where a document, which an object was read from,
// has no value. If there is none, that is where the object's fields are empty.
func (v *Version) Fill(obj runtime.Object, doc map[string]any) {
	if v.shape.some(reflect.ValueOf(obj), reflect.Value.IsZero) {
		v.fill(obj, doc, v.schema)
	}
}

// FillStored is Fill for an object that was read from what is stored, in JSON.
func (v *Version) FillStored(obj runtime.Object, data []byte) {
	if v.shape == nil || v.shape.Complete(data) {
		return
	}
	if doc, err := parse(data); err == nil {
		v.Fill(obj, doc)
	}
}

// FillStatus is Fill for an object whose status has been emptied.
func (v *Version) FillStatus(obj runtime.Object) {
	if v.shape.some(reflect.ValueOf(obj), reflect.Value.IsZero) {
		v.fill(obj, allBut("status"), v.schema)
	}
}

// FillMerged returns what a merged document is to be as an object: with defaults where it
// has no value, and without the values that the Go type cannot hold. The object must be
// validated together with the applied configuration.
func (v *Version) FillMerged(doc map[string]any) (runtime.Object, error) {
	obj := reflect.New(v.goType).Interface().(runtime.Object)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc, obj)
	if err != nil || v.fields.cutsOff(doc, v.goType) {
		if obj, err = v.object(doc); err != nil {
			return nil, fmt.Errorf("unable to convert unstructured object to %v: %w", v.kind, err)
		}
	}
	v.Fill(obj, doc)
	return obj, nil
}

// Converted returns what fills defaults in after an object of another version has become
// one of this. A field that has a default there, too, has got its value; any other one
// that the conversion leaves empty is absent. The other version may have no markers, nil.
func (v *Version) Converted(from *Version) func(obj runtime.Object) {
	if v.shape == nil {
		return func(runtime.Object) {}
	}
	rest := v.schema.DeepCopy()
	if from != nil {
		withoutDefaultsOf(rest, from.schema)
	}
	shape := v.fields.shapeOf(v.goType, rest)
	return func(obj runtime.Object) {
		if shape.some(reflect.ValueOf(obj), reflect.Value.IsZero) {
			v.fill(obj, nil, rest)
		}
	}
}

// withoutDefaultsOf removes the defaults of fields that have one in another schema.
func withoutDefaultsOf(s, other *structuralschema.Structural) {
	if s == nil || other == nil {
		return
	}
	if other.Default.Object != nil {
		s.Default = structuralschema.JSON{}
	}
	withoutDefaultsOf(s.Items, other.Items)
	if s.AdditionalProperties != nil && other.AdditionalProperties != nil {
		withoutDefaultsOf(s.AdditionalProperties.Structural, other.AdditionalProperties.Structural)
	}
	for name, property := range s.Properties {
		if same, ok := other.Properties[name]; ok {
			withoutDefaultsOf(&property, &same)
			s.Properties[name] = property
		}
	}
}

// fill fills in the defaults of a schema. Zeros that a document has are values.
func (v *Version) fill(obj runtime.Object, document any, schema *structuralschema.Structural) {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return // an object of the kind's Go type can be converted
	}
	v.shape.restore(doc, reflect.ValueOf(obj), document)
	before := runtime.DeepCopyJSON(doc)
	defaulting.PruneNonNullableNullsWithoutDefaults(doc, schema)
	defaulting.Default(doc, schema)
	if reflect.DeepEqual(before, doc) {
		return
	}
	filled := reflect.New(v.goType)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc, filled.Interface()); err == nil {
		reflect.ValueOf(obj).Elem().Set(filled.Elem())
	}
}

// HasZeros says whether an object has zeros that its plain form would leave out, and that
// are values: see Plain.
func (v *Version) HasZeros(obj runtime.Object) bool {
	return v.shape.some(reflect.ValueOf(obj), func(f reflect.Value) bool { return f.IsZero() && !absent(f) })
}

// Plain returns an object as it is written in JSON, with the zeros of fields that have
// defaults.
func (v *Version) Plain(obj runtime.Object) (map[string]any, error) {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("read %T: %w", obj, err)
	}
	v.shape.restore(doc, reflect.ValueOf(obj), everything{})
	return doc, nil
}

// Columns are the columns of the kind's table, nil if no marker names one.
func (v *Version) Columns() []apiextensionsv1.CustomResourceColumnDefinition {
	return v.version().AdditionalPrinterColumns
}

// Table prints objects of this version in the columns of the markers. It is nil if there
// are none.
func (v *Version) Table() (rest.TableConvertor, error) {
	if len(v.Columns()) == 0 {
		return nil, nil
	}
	return tableconvertor.New(v.Columns())
}

// SelectableFields are the paths, such as spec.host, that field selectors may name.
func (v *Version) SelectableFields() []string {
	var paths []string
	for _, f := range v.version().SelectableFields {
		paths = append(paths, f.JSONPath[min(1, len(f.JSONPath)):])
	}
	slices.Sort(paths)
	return paths
}

// HasStatus says whether /status is served.
func (v *Version) HasStatus() bool {
	sub := v.version().Subresources
	return sub != nil && sub.Status != nil
}

// Scale returns the paths of /scale, nil if it is not served.
func (v *Version) Scale() *apiextensionsv1.CustomResourceSubresourceScale {
	if sub := v.version().Subresources; sub != nil {
		return sub.Scale
	}
	return nil
}

// Served, Stored and Deprecated are what the markers say of the version. A deprecated
// one may have a warning of its own.
func (v *Version) Served() bool { return v.version().Served }

// Stored says whether the version is marked as the one that objects are stored in.
func (v *Version) Stored() bool { return v.version().Storage }

// Deprecated says whether the version is, and the warning that the marker gives, if any.
func (v *Version) Deprecated() (deprecated bool, warning string) {
	if w := v.version().DeprecationWarning; w != nil {
		warning = *w
	}
	return v.version().Deprecated, warning
}
