package lint

import (
	"go/ast"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// marks are the markers above a field or a type: values by name.
type marks map[string][]string

func marksOf(groups ...*ast.CommentGroup) marks {
	all := marks{}
	for _, group := range groups {
		if group == nil {
			continue
		}
		for _, line := range group.List {
			text, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(line.Text, "//")), "+")
			if !ok {
				continue
			}
			name, value := splitMarker(text)
			all[name] = append(all[name], value)
		}
	}
	return all
}

// splitMarker splits a marker into name and value: at the first =, or for rules at the colon before the arguments.
func splitMarker(text string) (name, value string) {
	for _, prefix := range []string{"kubebuilder:validation:XValidation", "kubebuilder:resource", "kubebuilder:validation:items:XValidation"} {
		if rest, ok := strings.CutPrefix(text, prefix+":"); ok {
			return prefix, rest
		}
	}
	name, value, _ = strings.Cut(text, "=")
	return strings.TrimSuffix(strings.TrimSpace(name), ":"), strings.TrimSpace(value)
}

func (m marks) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { _, ok := m[name]; return ok })
}

// with adds the markers of a field's type to the field's own, which take precedence.
func (m marks) with(other marks) marks {
	all := maps.Clone(other)
	if all == nil {
		all = marks{}
	}
	for name, values := range m {
		if repeatable(name) {
			all[name] = append(slices.Clone(all[name]), values...)
			continue
		}
		all[name] = values
	}
	return all
}

func repeatable(name string) bool {
	return strings.HasSuffix(name, "XValidation") || strings.HasSuffix(name, "listMapKey") || strings.HasPrefix(name, "k8s:")
}

// word returns a marker's name without its family, such as minimum for both families.
func word(name string) (string, bool) {
	if rest, ok := strings.CutPrefix(name, "kubebuilder:validation:"); ok {
		return strings.ToLower(rest), true
	}
	rest, ok := strings.CutPrefix(name, "k8s:")
	return strings.ToLower(rest), ok
}

// constraints returns the markers that constrain values, by word.
func (m marks) constraints() map[string]string {
	all := map[string]string{}
	for name, values := range m {
		w, ok := word(name)
		if !ok || len(values) == 0 || slices.Contains(aside, w) {
			continue
		}
		all[w] = values[len(values)-1]
	}
	return all
}

// aside are words that are compared in another way, or that constrain nothing.
var aside = []string{
	"required", "optional", "xvalidation", "items:xvalidation", "listtype", "listmapkey", "enum", "schemaless", "type",
	"openapi-gen", "deepcopy-gen", "deepcopy-gen:interfaces", "validation-gen", "defaulter-gen", "conversion-gen", "protobuf-gen",
	"supportssubresource", "issubresource", "opaquetype", "xpreserveunknownfields", "xintorstring",
}

// rules returns the CEL rules, and the values of repeatable tags.
func (m marks) rules() []string {
	var all []string
	for name, values := range m {
		if strings.HasSuffix(name, "XValidation") {
			for _, v := range values {
				all = append(all, rule(v))
			}
			continue
		}
		if w, ok := word(name); ok && strings.HasPrefix(name, "k8s:") && len(values) > 1 && !slices.Contains(aside, w) {
			for _, v := range values {
				all = append(all, name+"="+v)
			}
		}
	}
	return all
}

// rule returns the expression of an XValidation marker, since its message may change.
func rule(arguments string) string {
	_, rest, ok := strings.Cut(arguments, "rule=")
	if !ok {
		return arguments
	}
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		if text, err := strconv.Unquote(quoted); err == nil {
			return text
		}
	}
	return rest
}

// defaultOf returns the default in the markers, in source form.
func (m marks) defaultOf() (string, bool) {
	for _, name := range []string{"kubebuilder:default", "default"} {
		if values := m[name]; len(values) > 0 {
			return strings.Trim(strings.TrimPrefix(values[len(values)-1], "="), " `\""), true
		}
	}
	return "", false
}

// listType returns the merge strategy of a list.
func (m marks) listType() string {
	var all []string
	for _, family := range []string{"", "k8s:"} {
		if values := m[family+"listType"]; len(values) > 0 {
			all = append(all, values[len(values)-1])
		}
		keys := slices.Clone(m[family+"listMapKey"])
		slices.Sort(keys)
		all = append(all, keys...)
		if len(all) > 0 {
			break
		}
	}
	return strings.Join(all, " ")
}

// enumOf returns the values in an Enum marker.
func (m marks) enumOf() ([]string, bool) {
	values := m["kubebuilder:validation:Enum"]
	if len(values) == 0 {
		return nil, false
	}
	text := strings.Trim(values[len(values)-1], "{}")
	split := strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == ',' })
	for i := range split {
		split[i] = strings.Trim(strings.TrimSpace(split[i]), "\"`'")
	}
	return split, true
}

// tightened compares constraints and returns the new and the stricter ones.
func tightened(was, is marks) []string {
	old, now := was.constraints(), is.constraints()
	var all []string
	for _, w := range slices.Sorted(maps.Keys(now)) {
		before, had := old[w]
		value := now[w]
		if had && before == value {
			continue
		}
		base := w[strings.LastIndexByte(w, ':')+1:]
		n, err := strconv.ParseFloat(value, 64)
		b, errBefore := strconv.ParseFloat(before, 64)
		numbers := had && err == nil && errBefore == nil
		switch {
		case strings.HasPrefix(base, "max") && numbers && n >= b, strings.HasPrefix(base, "min") && numbers && n <= b:
			continue
		case strings.HasPrefix(base, "exclusive") && value == "false", base == "uniqueitems" && value == "false":
			continue
		case !had && value == "":
			all = append(all, w+" is required now")
		case !had:
			all = append(all, w+" "+value+" is required now")
		default:
			all = append(all, w+" was "+before+" and is "+value)
		}
	}
	rules := was.rules()
	for _, r := range is.rules() {
		if !slices.Contains(rules, r) {
			all = append(all, "the rule "+strconv.Quote(r)+" is new")
		}
	}
	if was.has("nullable") && !is.has("nullable") {
		all = append(all, "null is no longer accepted")
	}
	slices.Sort(all)
	return all
}
