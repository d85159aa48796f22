package gotypes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const validationPrefix = "kubebuilder:validation:"

// quote writes a string as a marker's argument.
func quote(s string) string {
	if strings.ContainsAny(s, "\"\\") && strconv.CanBackquote(s) {
		return "`" + s + "`"
	}
	return strconv.Quote(s)
}

// values are the types of values to which a keyword applies. A keyword's marker is refused on values of other types.
type values int

const (
	ofAny    values = iota // any other type, or a Go type whose schema is not known yet
	ofText                 // strings
	ofNumber               // integers and numbers
	ofList                 // arrays
	ofObject               // objects
)

// facets returns the markers for the constraints of a schema that its Go type does not already express; implied is
// the format of the Go type. Constraints that do not apply to such values are left to remainder.
func facets(s *apiextensionsv1.JSONSchemaProps, implied string, applicable values) []string {
	s = only(s, applicable)
	var all []string
	add := func(name, value string) { all = append(all, validationPrefix+name+"="+value) }
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	whole := func(n *int64) string { return strconv.FormatInt(*n, 10) }
	if s.Format != implied {
		add("Format", quote(s.Format))
	}
	if s.Minimum != nil {
		add("Minimum", number(*s.Minimum))
	}
	if s.ExclusiveMinimum {
		add("ExclusiveMinimum", "true")
	}
	if s.Maximum != nil {
		add("Maximum", number(*s.Maximum))
	}
	if s.ExclusiveMaximum {
		add("ExclusiveMaximum", "true")
	}
	if s.MultipleOf != nil {
		add("MultipleOf", number(*s.MultipleOf))
	}
	for _, limit := range []struct {
		name  string
		value *int64
	}{
		{"MinLength", s.MinLength}, {"MaxLength", s.MaxLength},
		{"MinItems", s.MinItems}, {"MaxItems", s.MaxItems},
		{"MinProperties", s.MinProperties}, {"MaxProperties", s.MaxProperties},
	} {
		if limit.value != nil {
			add(limit.name, whole(limit.value))
		}
	}
	if s.Pattern != "" {
		add("Pattern", quote(s.Pattern))
	}
	if s.UniqueItems {
		add("UniqueItems", "true")
	}
	if len(s.Enum) > 0 {
		add("Enum", enum(s.Enum))
	}
	if s.XEmbeddedResource && applicable == ofAny {
		all = append(all, validationPrefix+"EmbeddedResource")
	}
	for _, rule := range s.XValidations {
		all = append(all, celRule(rule))
	}
	return all
}

// topology returns the markers of lists and maps. For structs, the marker for atomic is structType.
func topology(s *apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	if s.XListType != nil {
		all = append(all, "listType="+*s.XListType)
	}
	for _, key := range s.XListMapKeys {
		all = append(all, "listMapKey="+key)
	}
	if s.XMapType != nil && len(s.Properties) > 0 {
		all = append(all, "structType="+*s.XMapType)
	} else if s.XMapType != nil {
		all = append(all, "mapType="+*s.XMapType)
	}
	return all
}

func celRule(rule apiextensionsv1.ValidationRule) string {
	text := validationPrefix + "XValidation:rule=" + quote(rule.Rule)
	for _, argument := range []struct{ name, value string }{
		{"message", rule.Message},
		{"messageExpression", rule.MessageExpression},
		{"fieldPath", rule.FieldPath},
	} {
		if argument.value != "" {
			text += "," + argument.name + "=" + quote(argument.value)
		}
	}
	if rule.Reason != nil {
		text += ",reason=" + quote(string(*rule.Reason))
	}
	if rule.OptionalOldSelf != nil {
		text += ",optionalOldSelf=" + strconv.FormatBool(*rule.OptionalOldSelf)
	}
	return text
}

var bareWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// enum formats values as the marker parser reads them: bare words need no quotes.
func enum(values []apiextensionsv1.JSON) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = scalar(v.Raw)
	}
	return strings.Join(parts, ";")
}

func scalar(raw []byte) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return string(raw)
	}
	if bareWord.MatchString(s) && !slices.Contains([]string{"true", "false", "null"}, s) {
		return s
	}
	return quote(s)
}

// defaultMarker returns kubebuilder's marker, if its notation can express the value, and otherwise the marker that
// takes JSON, which other generators read, too.
func defaultMarker(raw []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) == nil {
		if list, ok := value.([]any); ok && len(list) == 0 {
			return "kubebuilder:default={}" // controller-tools treats it as a list's
		}
		if text, ok := notation(value); ok {
			return "kubebuilder:default=" + text
		}
	}
	return "default=" + string(bytes.TrimSpace(raw))
}

// notation formats a value in the notation of markers. A list has braces like an object, and its items must have the
// same type. The notation cannot express null or an empty list.
func notation(value any) (string, bool) {
	switch v := value.(type) {
	case nil:
		return "", false
	case string:
		return quote(v), true
	case []any:
		if len(v) == 0 {
			return "", false
		}
		var items []string
		for _, item := range v {
			text, ok := notation(item)
			if !ok || reflect.TypeOf(item) != reflect.TypeOf(v[0]) || isWhole(item) != isWhole(v[0]) {
				return "", false
			}
			items = append(items, text)
		}
		return "{" + strings.Join(items, ",") + "}", true
	case map[string]any:
		var fields []string
		for _, name := range sortedKeys(v) {
			text, ok := notation(v[name])
			if !ok {
				return "", false
			}
			fields = append(fields, strconv.Quote(name)+":"+text)
		}
		return "{" + strings.Join(fields, ",") + "}", true
	}
	return fmt.Sprint(value), true
}

func isWhole(value any) bool {
	n, ok := value.(json.Number)
	return ok && !strings.ContainsAny(string(n), ".eE")
}

// kindMarkers returns the markers of a definition and of one of its versions.
func kindMarkers(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	names := d.Spec.Names
	resource := "kubebuilder:resource:path=" + names.Plural
	if names.Singular != "" && names.Singular != strings.ToLower(names.Kind) {
		resource += ",singular=" + names.Singular
	}
	resource += ",scope=" + string(d.Spec.Scope)
	if len(names.ShortNames) > 0 {
		resource += ",shortName=" + strings.Join(names.ShortNames, ";")
	}
	if len(names.Categories) > 0 {
		resource += ",categories=" + strings.Join(names.Categories, ";")
	}
	all := []string{"kubebuilder:object:root=true", resource}
	if v.Subresources != nil && v.Subresources.Status != nil {
		all = append(all, "kubebuilder:subresource:status")
	}
	if v.Subresources != nil && v.Subresources.Scale != nil {
		scale := v.Subresources.Scale
		text := fmt.Sprintf("kubebuilder:subresource:scale:specpath=%s,statuspath=%s", scale.SpecReplicasPath, scale.StatusReplicasPath)
		if scale.LabelSelectorPath != nil {
			text += ",selectorpath=" + *scale.LabelSelectorPath
		}
		all = append(all, text)
	}
	if v.Storage {
		all = append(all, "kubebuilder:storageversion")
		all = append(all, metadataMarkers(d)...)
	}
	if !v.Served {
		all = append(all, "kubebuilder:unservedversion")
	}
	if v.Deprecated {
		text := "kubebuilder:deprecatedversion"
		if v.DeprecationWarning != nil {
			text += ":warning=" + quote(*v.DeprecationWarning)
		}
		all = append(all, text)
	}
	for _, column := range v.AdditionalPrinterColumns {
		text := fmt.Sprintf(
			"kubebuilder:printcolumn:name=%s,type=%s,JSONPath=%s",
			quote(column.Name),
			quote(column.Type),
			quote(column.JSONPath),
		)
		if column.Description != "" {
			text += ",description=" + quote(column.Description)
		}
		if column.Format != "" {
			text += ",format=" + quote(column.Format)
		}
		if column.Priority != 0 {
			text += fmt.Sprintf(",priority=%d", column.Priority)
		}
		all = append(all, text)
	}
	for _, field := range v.SelectableFields {
		all = append(all, "kubebuilder:selectablefield:JSONPath="+quote(field.JSONPath))
	}
	return all
}

// notTheirs are annotations of tools that have processed the definition.
var notTheirs = []string{"controller-gen.kubebuilder.io/version", "kubectl.kubernetes.io/last-applied-configuration"}

func metadataMarkers(d *apiextensionsv1.CustomResourceDefinition) []string {
	pairs := func(m map[string]string) []string {
		var all []string
		for _, key := range sortedKeys(m) {
			if !slices.Contains(notTheirs, key) {
				all = append(all, quote(key+"="+m[key]))
			}
		}
		return all
	}
	var arguments []string
	if annotations := pairs(d.Annotations); len(annotations) > 0 {
		arguments = append(arguments, "annotations="+strings.Join(annotations, ";"))
	}
	if labels := pairs(d.Labels); len(labels) > 0 {
		arguments = append(arguments, "labels="+strings.Join(labels, ";"))
	}
	if len(arguments) == 0 {
		return nil
	}
	return []string{"kubebuilder:metadata:" + strings.Join(arguments, ",")}
}
