package structural

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// fitting returns the part of a JSON value that a Go type can hold, or nil. If unknown is set, unknown fields are
// kept.
func (fs fields) fitting(value any, t reflect.Type, unknown bool) any {
	if value == nil {
		return nil
	}
	if t.Kind() == reflect.Pointer {
		return fs.fitting(value, t.Elem(), unknown)
	}
	if !reflect.PointerTo(t).Implements(unmarshaler) {
		switch t.Kind() {
		case reflect.Struct:
			object, ok := value.(map[string]any)
			if !ok {
				return nil
			}
			out := map[string]any{}
			for key, v := range object {
				f, ok := fs.of(t, key)
				if !ok {
					if unknown {
						out[key] = v
					}
					continue
				}
				if v := fs.fitting(v, f.Type, unknown); v != nil {
					out[key] = v
				}
			}
			return out
		case reflect.Map:
			object, ok := value.(map[string]any)
			if !ok {
				return nil
			}
			out := map[string]any{}
			for key, v := range object {
				if v := fs.fitting(v, t.Elem(), unknown); v != nil {
					out[key] = v
				}
			}
			return out
		case reflect.Slice:
			list, ok := value.([]any)
			if !ok || t.Elem().Kind() == reflect.Uint8 {
				break
			}
			out := make([]any, len(list))
			for i, v := range list {
				out[i] = fs.fitting(v, t.Elem(), unknown)
			}
			return out
		}
	}
	data, err := json.Marshal(value)
	if err != nil || kjson.UnmarshalCaseSensitivePreserveInts(data, reflect.New(t).Interface()) != nil {
		return nil
	}
	return value
}

// tidyObject turns the document of a value into the document that a client would have sent, as far as the schema
// determines it: see Read. If fill is set, it adds required fields that are omitted because they are empty.
func (fs fields) tidyObject(doc map[string]any, value reflect.Value, s *structuralschema.Structural, fill bool) {
	var required []string
	if s != nil && s.ValueValidation != nil {
		required = s.ValueValidation.Required
	}
	fs.eachField(value, s, func(name string, f reflect.StructField, field reflect.Value, property *structuralschema.Structural) {
		needed := slices.Contains(required, name)
		is, written := doc[name]
		switch {
		case !written && fill && needed && scalar(field.Kind()) && !property.Nullable:
			doc[name] = zero(field)
		case !written:
		case is == nil:
			if !property.Nullable {
				delete(doc, name)
			}
		case property.Default.Object != nil:
			fs.tidyValue(is, field, property, fill) // its value is definite
		case field.Kind() == reflect.Struct && field.IsZero() && !needed && !property.Nullable && !hasOption(f, "omitzero"):
			delete(doc, name) // encoding/json always writes it; with omitzero only a client writes it
		case !needed && field.Kind() != reflect.Pointer && field.IsZero() && !property.Nullable && !mayBeEmpty(is, property):
			delete(doc, name)
		default:
			fs.tidyValue(is, field, property, fill)
		}
	})
}

func (fs fields) tidyValue(doc any, value reflect.Value, s *structuralschema.Structural, fill bool) {
	within(doc, value, s,
		func(doc map[string]any, value reflect.Value) { fs.tidyObject(doc, value, s, fill) },
		func(doc any, value reflect.Value, s *structuralschema.Structural, _ any) {
			fs.tidyValue(doc, value, s, fill)
		})
}

// eachField calls do for each field of a struct that is in the schema, except for fields of a nil inlined pointer.
func (fs fields) eachField(
	value reflect.Value,
	s *structuralschema.Structural,
	do func(name string, f reflect.StructField, field reflect.Value, property *structuralschema.Structural),
) {
	if value.Kind() != reflect.Struct || s == nil {
		return
	}
	for name, property := range s.Properties {
		f, ok := fs.of(value.Type(), name)
		if !ok {
			continue
		}
		if field, err := value.FieldByIndexErr(f.Index); err == nil {
			do(name, f, field, &property)
		}
	}
}

// within calls object for a struct with its document, or element for each element of a map or a list, with its key or
// index.
func within(doc any, value reflect.Value, s *structuralschema.Structural, object func(doc map[string]any, value reflect.Value),
	element func(doc any, value reflect.Value, s *structuralschema.Structural, at any)) {
	for value.Kind() == reflect.Pointer {
		if value.IsNil() {
			return
		}
		value = value.Elem()
	}
	switch doc := doc.(type) {
	case map[string]any:
		if value.Kind() != reflect.Map {
			object(doc, value)
			return
		}
		if value.Type().Key().Kind() != reflect.String || s.AdditionalProperties == nil {
			return
		}
		for key, inner := range doc {
			element(inner, value.MapIndex(reflect.ValueOf(key).Convert(value.Type().Key())), s.AdditionalProperties.Structural, key)
		}
	case []any:
		if value.Kind() != reflect.Slice || value.Len() != len(doc) || s.Items == nil {
			return
		}
		for i, inner := range doc {
			element(inner, value.Index(i), s.Items, i)
		}
	}
}

func scalar(k reflect.Kind) bool {
	return k == reflect.String || k == reflect.Bool || k >= reflect.Int && k <= reflect.Float64
}

// zero returns the zero value of a scalar field in JSON.
func zero(v reflect.Value) any {
	switch {
	case v.Kind() == reflect.String:
		return ""
	case v.Kind() == reflect.Bool:
		return false
	case v.CanFloat():
		return float64(0)
	}
	return int64(0)
}

// mayBeEmpty reports whether an empty value conforms to its schema, as far as the common markers determine it.
func mayBeEmpty(value any, s *structuralschema.Structural) bool {
	rules := s.ValueValidation
	if rules == nil {
		return true
	}
	if len(rules.Enum) > 0 &&
		!slices.ContainsFunc(rules.Enum, func(e structuralschema.JSON) bool { return reflect.DeepEqual(e.Object, value) }) {
		return false
	}
	switch value.(type) {
	case string:
		return (rules.MinLength == nil || *rules.MinLength == 0) && rules.Pattern == "" && rules.Format == ""
	case int64, float64:
		return (rules.Minimum == nil || *rules.Minimum < 0 || *rules.Minimum == 0 && !rules.ExclusiveMinimum) &&
			(rules.Maximum == nil || *rules.Maximum > 0 || *rules.Maximum == 0 && !rules.ExclusiveMaximum)
	case []any:
		return rules.MinItems == nil || *rules.MinItems == 0
	}
	return true
}

// removeAbsent removes empty required fields from the document of a value, including structs, if neither applied nor
// old has them.
func (fs fields) removeAbsent(doc map[string]any, value reflect.Value, s *structuralschema.Structural, applied, old map[string]any) {
	fs.eachField(value, s, func(name string, _ reflect.StructField, field reflect.Value, property *structuralschema.Structural) {
		_, given := applied[name]
		_, had := old[name]
		if !given && !had && (scalar(field.Kind()) || field.Kind() == reflect.Struct) && field.IsZero() {
			delete(doc, name)
			return
		}
		fs.removeAbsentFrom(doc[name], field, property, applied[name], old[name])
	})
}

func (fs fields) removeAbsentFrom(doc any, value reflect.Value, s *structuralschema.Structural, applied, old any) {
	if applied != nil && replaces(s) {
		old = nil // the old value is replaced completely
	}
	appliedFields, _ := applied.(map[string]any)
	oldFields, _ := old.(map[string]any)
	within(doc, value, s,
		func(doc map[string]any, value reflect.Value) {
			fs.removeAbsent(doc, value, s, appliedFields, oldFields)
		},
		func(doc any, value reflect.Value, inner *structuralschema.Structural, at any) {
			if key, ok := at.(string); ok {
				fs.removeAbsentFrom(doc, value, inner, appliedFields[key], oldFields[key])
				return
			}
			i := at.(int)
			fs.removeAbsentFrom(doc, value, inner, counterpart(applied, doc, i, s), counterpart(old, doc, i, s))
		})
}

// counterpart finds the matching element in another list: by its keys or their defaults if the list type is map, else
// by its index.
func counterpart(list, element any, i int, s *structuralschema.Structural) any {
	others, _ := list.([]any)
	if s.XListType == nil || *s.XListType != "map" {
		if i < len(others) {
			return others[i]
		}
		return nil
	}
	value := func(of map[string]any, key string) any {
		if is, ok := of[key]; ok || s.Items == nil {
			return is
		}
		return s.Items.Properties[key].Default.Object
	}
	own, _ := element.(map[string]any)
	for _, other := range others {
		candidate, _ := other.(map[string]any)
		if candidate != nil &&
			!slices.ContainsFunc(s.XListMapKeys, func(key string) bool { return !reflect.DeepEqual(value(candidate, key), value(own, key)) }) {
			return other
		}
	}
	return nil
}

// replaces reports whether an applied value replaces the old value completely.
func replaces(s *structuralschema.Structural) bool {
	if s.Type == "array" {
		return s.XListType == nil || *s.XListType == "atomic"
	}
	return s.XMapType != nil && *s.XMapType == "atomic"
}

// misfit is a value in a document that the Go type cannot hold.
type misfit struct {
	path  string // in the format of field.Path, with a dot before the first field
	value any
	t     reflect.Type
}

// misfits returns the values in a document for which loses is true. It descends into objects and lists whose Go type is a
// struct, a map or a slice, and tests all other values except nulls. Paths are only built for results, because most
// documents have none.
func (fs fields) misfits(value any, t reflect.Type, loses func(t reflect.Type, value any) bool) []misfit {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil {
		return nil
	}
	var found []misfit
	in := func(inner any, t reflect.Type, step func() string) {
		for _, m := range fs.misfits(inner, t, loses) {
			m.path = step() + m.path
			found = append(found, m)
		}
	}
	if !reflect.PointerTo(t).Implements(unmarshaler) {
		switch value := value.(type) {
		case map[string]any:
			switch t.Kind() {
			case reflect.Struct:
				for name, inner := range value {
					if f, ok := fs.of(t, name); ok {
						in(inner, f.Type, func() string { return "." + name })
					}
				}
				return found
			case reflect.Map:
				for key, inner := range value {
					in(inner, t.Elem(), func() string { return "[" + key + "]" })
				}
				return found
			}
		case []any:
			if t.Kind() == reflect.Slice {
				for i, inner := range value {
					in(inner, t.Elem(), func() string { return fmt.Sprintf("[%d]", i) })
				}
				return found
			}
		}
	}
	if loses(t, value) {
		return []misfit{{value: value, t: t}}
	}
	return nil
}

// cutsOff reports whether a number in a document exceeds the Go type's integer. The conversion of documents would
// truncate it silently.
func (fs fields) cutsOff(doc any, t reflect.Type) bool {
	return len(fs.misfits(doc, t, func(t reflect.Type, value any) bool { return isInteger(t) && !holds(t, value) })) > 0
}

// holdsNot reports whether a Go type cannot hold a JSON value.
func holdsNot(t reflect.Type, value any) bool { return !holds(t, value) }

func isInteger(t reflect.Type) bool {
	return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr
}

// holds reports whether a Go type can hold a JSON value.
func holds(t reflect.Type, value any) bool {
	if !reflect.PointerTo(t).Implements(unmarshaler) {
		switch value := value.(type) {
		case string:
			if t.Kind() == reflect.String {
				return true
			}
		case bool:
			if t.Kind() == reflect.Bool {
				return true
			}
		case int64:
			if t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 {
				return !reflect.Zero(t).OverflowInt(value)
			}
		}
	}
	data, err := json.Marshal(value)
	return err == nil && kjson.UnmarshalCaseSensitivePreserveInts(data, reflect.New(t).Interface()) == nil
}

// impose writes an applied value, as the client sent it, into the document of the Go value that was decoded from it.
// The Go value may lack nulls, empty strings and values that its type cannot hold. Changes that hooks have made are
// kept. It returns the document.
func (fs fields) impose(doc any, value reflect.Value, t reflect.Type, s *structuralschema.Structural, applied any) any {
	for t.Kind() == reflect.Pointer {
		if t = t.Elem(); value.IsValid() {
			value = value.Elem()
		}
	}
	if s != nil && value.IsValid() && (len(s.Properties) > 0 || !reflect.PointerTo(t).Implements(unmarshaler)) {
		switch into := doc.(type) {
		case map[string]any:
			if sent, ok := applied.(map[string]any); ok && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map) {
				fs.imposeMembers(into, value, s, sent)
				return into
			}
		case []any:
			if sent, ok := applied.([]any); ok && t.Kind() == reflect.Slice && s.Items != nil && value.Len() == len(into) {
				fs.imposeItems(into, value, s, sent)
				return into
			}
		}
	}
	switch applied.(type) {
	case string, bool, int64:
		if applied == doc {
			return doc // the common case
		}
	}
	if cameOf(applied, value, t) {
		return applied
	}
	return doc
}

func (fs fields) imposeMembers(into map[string]any, value reflect.Value, s *structuralschema.Structural, sent map[string]any) {
	for name, is := range sent {
		member, t, property := fs.memberIn(value, s, name)
		if property == nil || is == nil && property.Default.Object != nil && !property.Nullable {
			continue // null selects the default
		}
		_, had := into[name]
		if now := fs.impose(into[name], member, t, property, is); had || now != nil || is == nil && cameOf(is, member, t) {
			into[name] = now
		}
	}
}

// memberIn returns a field of a struct or a value of a map by its JSON name, with its Go type and its schema. The
// schema is nil if there is none.
func (fs fields) memberIn(
	value reflect.Value,
	s *structuralschema.Structural,
	name string,
) (reflect.Value, reflect.Type, *structuralschema.Structural) {
	if value.Kind() == reflect.Map {
		if s.AdditionalProperties == nil || value.Type().Key().Kind() != reflect.String {
			return reflect.Value{}, nil, nil
		}
		return value.MapIndex(reflect.ValueOf(name).Convert(value.Type().Key())), value.Type().Elem(), s.AdditionalProperties.Structural
	}
	property, ok := s.Properties[name]
	f, found := fs.of(value.Type(), name)
	if !ok || !found {
		return reflect.Value{}, nil, nil
	}
	member, err := value.FieldByIndexErr(f.Index)
	if err != nil {
		return reflect.Value{}, nil, nil
	}
	return member, f.Type, &property
}

func (fs fields) imposeItems(into []any, value reflect.Value, s *structuralschema.Structural, sent []any) {
	keyed := s.XListType != nil && *s.XListType == "map"
	if !keyed && (len(sent) != len(into) || !replaces(s)) {
		return // the items of a set are merged
	}
	for i := range into {
		is := counterpart(sent, into[i], i, s)
		if is == nil && keyed {
			continue
		}
		into[i] = fs.impose(into[i], value.Index(i), value.Type().Elem(), s.Items, is)
	}
}

// cameOf reports whether decoding the applied value yields this Go value, which is the zero reflect.Value if there is
// none.
func cameOf(applied any, value reflect.Value, t reflect.Type) bool {
	for value.IsValid() && value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	none := !value.IsValid() || value.IsZero()
	if applied == nil {
		return none
	}
	data, err := json.Marshal(applied)
	if err != nil {
		return false
	}
	is := reflect.New(t)
	if kjson.UnmarshalCaseSensitivePreserveInts(data, is.Interface()) != nil {
		return none
	}
	return value.IsValid() && apiequality.Semantic.DeepEqual(is.Elem().Interface(), value.Interface())
}
