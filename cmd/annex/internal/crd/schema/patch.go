package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// patchMarker is Annex's own marker, for parts of a schema that kubebuilder's markers cannot express.
const patchMarker = "annex:schema"

// patch is the value of +annex:schema: a merge patch, in JSON, of the schema that results from the other markers and
// the Go type.
type patch string

// ParseMarker implements the interface of controller-tools' parser.
func (p *patch) ParseMarker(_, _, text string) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return fmt.Errorf("the value is not a JSON object: %w", err)
	}
	if fields == nil {
		return fmt.Errorf(`the value is not a JSON object: write +%s={"maxLength": 63}`, patchMarker)
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&apiextensionsv1.JSONSchemaProps{}); err != nil {
		return fmt.Errorf("the value is not a schema: %w", err)
	}
	*p = patch(text)
	return nil
}

// ApplyToSchema stores the patch in a field that structural schemas do not use. A type that is declared elsewhere is
// a reference until the schema is flattened, so the patch cannot be applied yet.
func (p patch) ApplyToSchema(_ *crdmarkers.SchemaContext, s *apiextensionsv1.JSONSchemaProps) error {
	if s.Schema != "" {
		return fmt.Errorf("+%s can be used only once", patchMarker)
	}
	s.Schema = apiextensionsv1.JSONSchemaURL(p)
	return nil
}

func registerPatch(registry *markers.Registry) error {
	for _, target := range []markers.TargetType{markers.DescribesField, markers.DescribesType} {
		if err := registry.Define(patchMarker, target, patch("")); err != nil {
			return fmt.Errorf("register +%s: %w", patchMarker, err)
		}
	}
	return nil
}

// applyPatches applies the patches in the schemas of a definition.
func applyPatches(definition *apiextensionsv1.CustomResourceDefinition) error {
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		if err := patched(v.Schema.OpenAPIV3Schema); err != nil {
			return fmt.Errorf("%s version %s: %w", definition.Name, v.Name, err)
		}
	}
	return nil
}

// patched applies the patches in a schema, the inner ones first, since an outer patch may override inner values.
func patched(s *apiextensionsv1.JSONSchemaProps) error {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		if err := patched(&property); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		if err := patched(s.Items.Schema); err != nil {
			return fmt.Errorf("items: %w", err)
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		if err := patched(s.AdditionalProperties.Schema); err != nil {
			return fmt.Errorf("additionalProperties: %w", err)
		}
	}
	for _, p := range patchesOf(s) {
		if err := merge(s, p); err != nil {
			return err
		}
	}
	return nil
}

// patchesOf removes the patches from a schema and returns them. Flattening leaves a single patch in place, and moves
// patches of both type and field to allOf, the field's last.
func patchesOf(s *apiextensionsv1.JSONSchemaProps) []patch {
	var all []patch
	if s.Schema != "" {
		all = append(all, patch(s.Schema))
		s.Schema = ""
	}
	s.AllOf = slices.DeleteFunc(s.AllOf, func(of apiextensionsv1.JSONSchemaProps) bool {
		if of.Schema == "" {
			return false
		}
		all = append(all, patch(of.Schema))
		return true
	})
	if len(s.AllOf) == 0 {
		s.AllOf = nil
	}
	return all
}

func merge(s *apiextensionsv1.JSONSchemaProps, p patch) error {
	description := s.Description
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var target, change map[string]any
	if err := decode(data, &target); err != nil {
		return err
	}
	if err := decode([]byte(p), &change); err != nil {
		return err
	}
	if data, err = json.Marshal(merged(target, change)); err != nil {
		return err
	}
	*s = apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(data, s); err != nil {
		return fmt.Errorf("+%s: %w", patchMarker, err)
	}
	s.Description = description
	return nil
}

// decode preserves the notation of numbers.
func decode(data []byte, into *map[string]any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// merged returns target with a merge patch of RFC 7386 applied.
func merged(target, change map[string]any) map[string]any {
	if target == nil {
		target = map[string]any{}
	}
	for key, value := range change {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case map[string]any:
			inner, _ := target[key].(map[string]any)
			target[key] = merged(inner, value)
		default:
			target[key] = value
		}
	}
	return target
}
