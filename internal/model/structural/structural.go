// Package structural applies the kubebuilder markers of Go types to kinds, as a server of CustomResourceDefinitions
// (a CRD server) would. The rules are implemented by apiextensions.
//
// A CRD server works on documents, this server on Go values, in which an absent field looks like an empty one.
// Therefore the body of a request is captured in its context (see CaptureBody), and validation uses the document from
// that body (see Document).
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

// Version contains the markers of one version of a kind. It is safe for concurrent use.
type Version struct {
	// Definition has exactly this version.
	Definition apiextensionsv1.CustomResourceDefinition

	kind     schema.GroupVersionKind
	goType   reflect.Type
	fields   fields
	schema   *structuralschema.Structural
	raw      *structuralschema.Structural // as marked
	shape    *Shape                       // nil without defaults
	defaults bool
	// concealing is set if the Go type has structs that strict decoding does not inspect.
	concealing bool
	internal   *apiextensions.JSONSchemaProps
	rules      func() (rules, error)
	messages   func() (messageRules, error)
}

// rules validate objects. They are compiled for the first object, which has to wait for them.
type rules struct {
	document validation.SchemaValidator
	main     rest.RESTCreateUpdateStrategy
	status   rest.RESTUpdateStrategy
}

// New parses the generated definition of a version of a kind, whose Go type is goType. If the definition has no entry
// for subresources, not even an empty one, status determines whether /status is served.
func New(kind schema.GroupVersionKind, goType reflect.Type, definition string, status bool) (*Version, error) {
	v := &Version{kind: kind, goType: goType, fields: fieldsOf(goType)}
	if err := json.Unmarshal([]byte(definition), &v.Definition); err != nil {
		return nil, fmt.Errorf("read the definition: %w", err)
	}
	if n := len(v.Definition.Spec.Versions); n != 1 || v.Definition.Spec.Versions[0].Name != kind.Version {
		return nil, fmt.Errorf("the definition must have only the version %s", kind.Version)
	}
	if v.version().Subresources == nil && status {
		v.version().Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	}
	return v, v.compute()
}

// NewMessage parses the generated schema of a Go type whose objects are sent but not stored, such as the requests of
// an action. Only ValidateMessage may be used to validate them.
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

// compute derives all other fields from the schema in the definition.
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

// WithKind returns the same rules for a kind with another name.
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

// compile creates the strategies that a CRD server would use.
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

// Scoped reports whether the markers determine the scope. Otherwise SetScope has to be called before any object is
// validated.
func (v *Version) Scoped() bool { return v.Definition.Spec.Scope != "" }

// SetScope sets the scope of a kind whose markers do not.
func (v *Version) SetScope(clusterScoped bool) {
	v.Definition.Spec.Scope = apiextensionsv1.NamespaceScoped
	if clusterScoped {
		v.Definition.Spec.Scope = apiextensionsv1.ClusterScoped
	}
}

// Namespaced reports whether the kind is namespaced.
func (v *Version) Namespaced() bool {
	return v.Definition.Spec.Scope != apiextensionsv1.ClusterScoped
}

// Validate validates a new document, including its metadata. The errors and their order are those of a CRD server.
func (v *Version) Validate(ctx context.Context, doc map[string]any) field.ErrorList {
	r, err := v.rules()
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return r.main.Validate(ctx, &unstructured.Unstructured{Object: doc})
}

// ValidateUpdate validates a document that replaces old. Unchanged values may violate rules that are newer than they.
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

// fits reports whether a document conforms to the schema, except for CEL rules.
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
	// The explicit check converts a nil *field.Error to a nil error.
	if err := objectmeta.Coerce(nil, doc, v.schema, false, false); err != nil {
		return err
	}
	return nil
}

// Shape returns the locations of fields with defaults in the version's Go type; nil if there are none.
func (v *Version) Shape() *Shape { return v.shape }

// Default fills in the defaults of nil fields of an object. A zero counts as a value: see Fill.
func (v *Version) Default(obj runtime.Object) {
	if v.shape.some(reflect.ValueOf(obj), absent) {
		v.fill(obj, everything{}, v.schema)
	}
}

// Fill fills in the defaults of fields that are absent in doc, the document that obj was read from. If doc is nil,
// the empty fields of obj are absent.
func (v *Version) Fill(obj runtime.Object, doc map[string]any) {
	if v.shape.some(reflect.ValueOf(obj), reflect.Value.IsZero) {
		v.fill(obj, doc, v.schema)
	}
}

// FillStored is like Fill, for an object that was read from stored JSON.
func (v *Version) FillStored(obj runtime.Object, data []byte) {
	if v.shape == nil || v.shape.Complete(data) {
		return
	}
	if doc, err := parse(data); err == nil {
		v.Fill(obj, doc)
	}
}

// FillStatus is like Fill, for an object whose status has been emptied.
func (v *Version) FillStatus(obj runtime.Object) {
	if v.shape.some(reflect.ValueOf(obj), reflect.Value.IsZero) {
		v.fill(obj, allBut("status"), v.schema)
	}
}

// FillMerged converts a merged document into an object, with defaults for absent fields and without the values that
// the Go type cannot hold. The object must be validated together with the applied configuration.
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

// Converted returns a function that fills in defaults after the conversion of an object from another version. A field
// with a default in both versions already has its value; any other field that the conversion leaves empty is absent.
// from is nil if the other version has no markers.
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

// withoutDefaultsOf removes the defaults of fields that also have one in another schema.
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

// fill fills in the defaults of a schema. Zeros that are present in document count as values.
func (v *Version) fill(obj runtime.Object, document any, schema *structuralschema.Structural) {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return // cannot happen for the kind's Go type
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

// HasZeros reports whether an object has zeros that count as values and that its plain form omits: see Plain.
func (v *Version) HasZeros(obj runtime.Object) bool {
	return v.shape.some(reflect.ValueOf(obj), func(f reflect.Value) bool { return f.IsZero() && !absent(f) })
}

// Plain returns an object as a JSON document, including the zeros of fields with defaults.
func (v *Version) Plain(obj runtime.Object) (map[string]any, error) {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("read %T: %w", obj, err)
	}
	v.shape.restore(doc, reflect.ValueOf(obj), everything{})
	return doc, nil
}

// Columns returns the columns of the kind's table; nil without markers for them.
func (v *Version) Columns() []apiextensionsv1.CustomResourceColumnDefinition {
	return v.version().AdditionalPrinterColumns
}

// Table returns a convertor of objects of this version to tables with the columns of the markers; nil if there are
// none.
func (v *Version) Table() (rest.TableConvertor, error) {
	if len(v.Columns()) == 0 {
		return nil, nil
	}
	return tableconvertor.New(v.Columns())
}

// SelectableFields returns the paths, such as spec.host, that field selectors may use.
func (v *Version) SelectableFields() []string {
	var paths []string
	for _, f := range v.version().SelectableFields {
		paths = append(paths, f.JSONPath[min(1, len(f.JSONPath)):])
	}
	slices.Sort(paths)
	return paths
}

// HasStatus reports whether /status is served.
func (v *Version) HasStatus() bool {
	sub := v.version().Subresources
	return sub != nil && sub.Status != nil
}

// Scale returns the paths of /scale; nil if it is not served.
func (v *Version) Scale() *apiextensionsv1.CustomResourceSubresourceScale {
	if sub := v.version().Subresources; sub != nil {
		return sub.Scale
	}
	return nil
}

// Served reports whether the version is marked as served.
func (v *Version) Served() bool { return v.version().Served }

// Stored reports whether the version is marked as the storage version.
func (v *Version) Stored() bool { return v.version().Storage }

// Deprecated reports whether the version is deprecated, with the warning of the marker, if it has one.
func (v *Version) Deprecated() (deprecated bool, warning string) {
	if w := v.version().DeprecationWarning; w != nil {
		warning = *w
	}
	return v.version().Deprecated, warning
}
