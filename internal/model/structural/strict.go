package structural

import (
	"fmt"
	"reflect"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// concealing reports whether a Go type contains a struct with its own UnmarshalJSON whose schema has properties. A
// strict decoder detects neither unknown nor duplicate fields inside it.
func (fs fields) concealing(t reflect.Type, s *structuralschema.Structural, seen map[reflect.Type]bool) bool {
	if s == nil {
		return false
	}
	switch t.Kind() {
	case reflect.Pointer:
		return fs.concealing(t.Elem(), s, seen)
	case reflect.Slice:
		return fs.concealing(t.Elem(), s.Items, seen)
	case reflect.Map:
		return s.AdditionalProperties != nil && fs.concealing(t.Elem(), s.AdditionalProperties.Structural, seen)
	case reflect.Struct:
		if len(s.Properties) == 0 || seen[t] {
			return false
		}
		if reflect.PointerTo(t).Implements(unmarshaler) {
			return true
		}
		seen[t] = true
		for name, property := range s.Properties {
			if f, ok := fs.of(t, name); ok && fs.concealing(f.Type, &property, seen) {
				return true
			}
		}
	}
	return false
}

// Strict adds unknown and duplicate fields in structs with their own UnmarshalJSON to the result of strict decoding,
// in the format of a CRD server. data is the client's JSON or YAML; err is nil or a strict decoding error.
func (v *Version) Strict(data []byte, err error) error {
	if !v.concealing {
		return err
	}
	return v.Unknown(data, err)
}

// Unknown is like Strict, for a body with values that the Go type cannot hold. A strict decoder does not inspect such
// values either.
func (v *Version) Unknown(data []byte, err error) error {
	doc, failure := parse(data)
	if failure != nil {
		return err
	}
	var all []error
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		all = slices.Clone(strict.Errors())
	}
	add := func(found error) {
		if !slices.ContainsFunc(all, func(known error) bool { return known.Error() == found.Error() }) {
			all = append(all, found)
		}
	}
	var twice map[string]any
	if repeated, failure := kjson.UnmarshalStrict(data, &twice); failure == nil {
		for _, found := range repeated {
			add(found)
		}
	}
	delete(doc, "metadata")
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(doc, v.schema, true, options) {
		add(fmt.Errorf("unknown field %q", path))
	}
	if len(all) == 0 {
		return err
	}
	return runtime.NewStrictDecodingError(all)
}
