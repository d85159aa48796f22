package compared

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

type schema = apiextensionsv1.JSONSchemaProps

// depth bounds the nesting of generated objects; schemas have dozens of levels.
const depth = 12

// words are tried for patterns and formats.
var words = []string{
	"a",
	"abc",
	"A",
	"Abc",
	"1",
	"10",
	"1h",
	"10s",
	"10m0s",
	"example.com",
	"a.example.com",
	"https://example.com",
	"http://a/b",
	"/a",
	"a/b",
	"10.0.0.0/8",
	"10.0.0.1",
	"fd00::1",
	"fd00::/8",
	"2026-01-01T00:00:00Z",
	"2026-01-01",
	"YWJj",
	"500m",
	"1Gi",
	"50%",
	"true",
	"a=b",
	"* * * * *",
	"v1",
	"a.b/c",
	"urn:a",
	"sha256:" + strings.Repeat(
		"a",
		64,
	),
	"9f86d081-884c-4d63-a15f-4d3e2f1a0b9c",
	"a@example.com",
	"AES256",
	"^a$",
	"aa:bb:cc:dd:ee:ff",
	"a:b",
	"a_b",
	"@every 1h",
	strings.Repeat(
		"a",
		8,
	),
	strings.Repeat("a", 20),
	strings.Repeat("a", 32),
	"arn:aws:iam::123456789012:role/a",
	"i-0123456789",
	"vol-012345678",
	"1.2.3",
	"v1.2.3",
}

var formats = map[string]string{
	"date-time": "2026-01-01T00:00:00Z",
	"date":      "2026-01-01",
	"byte":      "YWJj",
	"uri":       "https://example.com",
	"duration":  "1h0m0s",
	"ipv4":      "10.0.0.1",
	"ipv6":      "fd00::1",
	"cidr":      "10.0.0.0/8",
	"hostname":  "example.com",
	"uuid":      "9f86d081-884c-4d63-a15f-4d3e2f1a0b9c",
	"email":     "a@example.com",
	"mac":       "aa:bb:cc:dd:ee:ff",
}

// sample returns a valid value for a schema, if it finds one: with required properties only, or with all optional
// properties that it can generate. It reports whether it succeeded.
func sample(s *schema, all bool, left int) (any, bool) {
	if s.Default != nil && !all {
		return value(s.Default.Raw), true
	}
	if len(s.Enum) > 0 {
		return value(s.Enum[0].Raw), true
	}
	switch {
	case s.XIntOrString:
		if s.Pattern == "" || matches(s, "1") {
			return int64(1), true
		}
		return text(s)
	case s.Type == "string":
		return text(s)
	case s.Type == "integer":
		return int64(number(s)), true
	case s.Type == "number":
		return number(s), true
	case s.Type == "boolean":
		return true, true
	case s.Type == "array":
		list := []any{}
		if n := s.MinItems; s.Items == nil || s.Items.Schema == nil || left == 0 || !all && (n == nil || *n == 0) {
			return list, true
		}
		item, ok := sample(s.Items.Schema, all, left-1)
		if !ok {
			return list, s.MinItems == nil || *s.MinItems == 0
		}
		return append(list, item), s.MinItems == nil || *s.MinItems <= 1
	case s.Type == "object":
		return object(s, all, left)
	}
	return "anything", true
}

func object(s *schema, all bool, left int) (any, bool) {
	o := map[string]any{}
	ok := true
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		required := slices.Contains(s.Required, name)
		if !required && (!all || left == 0) {
			continue
		}
		v, made := sample(&property, all, left-1)
		if made {
			o[name] = v
		} else if required {
			ok = false
		}
	}
	if s.XEmbeddedResource {
		o["apiVersion"], o["kind"] = "v1", "Pod"
	}
	if m := s.AdditionalProperties; m != nil && m.Schema != nil && (all || s.MinProperties != nil) && left > 0 {
		if v, made := sample(m.Schema, all, left-1); made {
			o["a"] = v
		}
	}
	return o, ok
}

func number(s *schema) float64 {
	n := 1.0
	if s.Minimum != nil {
		n = max(n, *s.Minimum)
		if s.ExclusiveMinimum && n == *s.Minimum {
			n++
		}
	}
	if s.Maximum != nil {
		n = min(n, *s.Maximum)
	}
	if s.MultipleOf != nil && *s.MultipleOf > n {
		n = *s.MultipleOf
	}
	return n
}

func text(s *schema) (any, bool) {
	candidates := words
	if word, ok := formats[s.Format]; ok {
		candidates = append([]string{word}, words...)
	}
	for _, word := range candidates {
		if matches(s, word) {
			return word, true
		}
	}
	if s.MinLength != nil && s.Pattern == "" {
		return strings.Repeat("a", int(*s.MinLength)), true
	}
	return nil, false
}

func matches(s *schema, word string) bool {
	if s.MinLength != nil && int64(len(word)) < *s.MinLength || s.MaxLength != nil && int64(len(word)) > *s.MaxLength {
		return false
	}
	if s.Pattern == "" {
		return true
	}
	ok, err := regexp.MatchString(s.Pattern, word)
	return ok && err == nil
}

func value(raw []byte) any {
	var v struct{ Value any }
	if json.Unmarshal(fmt.Appendf(nil, `{"Value":%s}`, raw), &v) != nil {
		return nil
	}
	return whole(v.Value)
}

// whole converts numbers without a fraction to integers, as in JSON.
func whole(v any) any {
	switch v := v.(type) {
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	case map[string]any:
		for key, inner := range v {
			v[key] = whole(inner)
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	}
	return v
}

// mutant is an object with one change.
type mutant struct {
	path, change string
	make         func() map[string]any
}

// mutants returns objects that differ from a base in one value. For each property of the schema there are objects
// with it and without it, with values of another type, out of range or empty, and with an unknown field beside it.
// Properties that the base lacks are generated, with the required properties around them.
func mutants(base map[string]any, s *schema) []mutant {
	var all []mutant
	add := func(path, change string, set func(doc map[string]any)) {
		all = append(all, mutant{path, change, func() map[string]any {
			doc := runtime.DeepCopyJSON(base)
			set(doc)
			return runtime.DeepCopyJSON(doc)
		}})
	}
	var visit func(s *schema, path string, left int, put func(doc map[string]any, v any, remove bool))
	visit = func(s *schema, path string, left int, put func(doc map[string]any, v any, remove bool)) {
		values := variants(s)
		for _, change := range slices.Sorted(maps.Keys(values)) {
			add(path, change, func(doc map[string]any) { put(doc, values[change], false) })
		}
		add(path, "missing", func(doc map[string]any) { put(doc, nil, true) })
		if left == 0 {
			return
		}
		switch {
		case s.Type == "object" && len(s.Properties) > 0:
			around := func() map[string]any { v, _ := object(s, false, left); return v.(map[string]any) }
			add(path, "unknown field", func(doc map[string]any) {
				o := around()
				o["annexUnknown"] = map[string]any{"a": int64(1), "b": []any{"c"}}
				put(doc, o, false)
			})
			for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
				property := s.Properties[name]
				visit(&property, path+"."+name, left-1, func(doc map[string]any, v any, remove bool) {
					o := around()
					if o[name] = v; remove {
						delete(o, name)
					}
					put(doc, o, false)
				})
			}
		case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
			visit(s.AdditionalProperties.Schema, path+"[*]", left-1, func(doc map[string]any, v any, remove bool) {
				o := map[string]any{"k": v}
				if remove {
					o = map[string]any{}
				}
				put(doc, o, false)
			})
		case s.Items != nil && s.Items.Schema != nil:
			visit(s.Items.Schema, path+"[]", left-1, func(doc map[string]any, v any, remove bool) {
				list := []any{v}
				if remove {
					list = []any{}
				}
				put(doc, list, false)
			})
			item, _ := sample(s.Items.Schema, false, left)
			add(path, "twice", func(doc map[string]any) { put(doc, []any{item, item}, false) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue
		}
		property := s.Properties[name]
		visit(&property, "."+name, depth, func(doc map[string]any, v any, remove bool) {
			if doc[name] = v; remove {
				delete(doc, name)
			}
		})
	}
	add("", "unknown field", func(doc map[string]any) { doc["annexUnknown"] = map[string]any{"a": int64(1)} })
	return all
}

// variants returns values for a schema, most of them invalid.
func variants(s *schema) map[string]any {
	all := map[string]any{"null": nil}
	if v, ok := sample(s, false, 3); ok {
		all["minimal"] = v
	}
	if v, ok := sample(s, true, 3); ok {
		all["full"] = v
	}
	if len(s.Enum) > 0 {
		all["not in enum"] = "annexOther"
	}
	switch {
	case s.XIntOrString:
		all["string"], all["integer"], all["boolean"], all["percent"], all["large"] = "1", int64(5), true, "50%", int64(1)<<40
		all["not normal"] = "1000m"
	case s.Type == "string":
		all["number"], all["empty"], all["strange"], all["list"] = int64(1), "", "!annex \u00e9<", []any{}
		if s.MaxLength != nil && *s.MaxLength < 100000 {
			all["too long"] = strings.Repeat("a", int(*s.MaxLength)+1)
		}
		if s.Format == "date-time" {
			all["fraction"], all["other zone"] = "2026-01-01T00:00:00.5Z", "2026-01-01T02:00:00+02:00"
		}
	case s.Type == "integer":
		all["string"], all["zero"], all["fraction"], all["negative"], all["large"] = "1", int64(0), 1.5, int64(-1), int64(1)<<40
		limited(s, all)
	case s.Type == "number":
		all["string"], all["zero"], all["fraction"] = "1", int64(0), 1.5
		limited(s, all)
	case s.Type == "boolean":
		all["string"], all["false"] = "true", false
	case s.Type == "array":
		all["string"], all["empty"], all["object"], all["with null"] = "a", []any{}, map[string]any{}, []any{nil}
		if n := s.MaxItems; n != nil && *n < 1000 && s.Items != nil && s.Items.Schema != nil {
			item, _ := sample(s.Items.Schema, false, 3)
			all["too many"] = slices.Repeat([]any{item}, int(*n)+1)
		}
	case s.Type == "object":
		all["string"], all["empty"], all["list"] = "a", map[string]any{}, []any{}
		if len(s.Properties) == 0 {
			all["content"] = map[string]any{"a": int64(1), "b": map[string]any{"c": nil, "d": []any{1.5, ""}}}
			all["metadata"] = map[string]any{"name": "a", "labels": map[string]any{"a": "b"}}
		}
	default:
		all["string"], all["zero"], all["object"] = "a", int64(0), map[string]any{"a": nil}
	}
	return all
}

func limited(s *schema, all map[string]any) {
	if s.Minimum != nil {
		all["too small"] = int64(*s.Minimum) - 1
	}
	if s.Maximum != nil && *s.Maximum < 1<<53 {
		all["too great"] = int64(*s.Maximum) + 1
	}
}
