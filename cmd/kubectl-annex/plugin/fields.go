package plugin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// fields are the fields in an action's body or a view's query.
type fields struct {
	all []*field
	// hasMetadata is set if the body holds the name and namespace of the object.
	hasMetadata bool
}

// field is a field with a flag.
type field struct {
	name, flag  string
	kind        string // string, integer, number or boolean; the type of the items if many or keyed is set
	many, keyed bool
	enum        []string
	description string
	required    bool

	value any
	isSet bool
}

// fields reads the OpenAPI v3 document of the resource's version.
func (s *server) fields(r resource, sub subresource) (fields, error) {
	client, err := s.config.ToDiscoveryClient()
	if err != nil {
		return fields{}, err
	}
	versions, err := client.OpenAPIV3().Paths()
	if err != nil {
		return fields{}, err
	}
	prefix := strings.TrimPrefix(strings.Join(object{resource: r}.path()[:3], "/"), "/")
	if r.Group == "" {
		prefix = "api/" + r.Version
	}
	document, ok := versions[prefix]
	if !ok {
		return fields{}, fmt.Errorf("the server has no OpenAPI document for %s", prefix)
	}
	text, err := document.Schema("application/json")
	if err != nil {
		return fields{}, err
	}
	var parsed spec3.OpenAPI
	if err := json.Unmarshal(text, &parsed); err != nil {
		return fields{}, fmt.Errorf("read the OpenAPI document of %s: %w", prefix, err)
	}
	at := "/" + prefix + "/" + r.Resource + "/{name}/" + sub.name
	if r.namespaced {
		at = "/" + prefix + "/namespaces/{namespace}/" + r.Resource + "/{name}/" + sub.name
	}
	if parsed.Paths == nil || parsed.Paths.Paths[at] == nil {
		return fields{}, fmt.Errorf("the OpenAPI document of %s has no %s", prefix, at)
	}
	if sub.role == roleView {
		return ofQuery(parsed.Paths.Paths[at]), nil
	}
	return ofBody(parsed.Paths.Paths[at], parsed.Components), nil
}

func ofQuery(path *spec3.Path) fields {
	var f fields
	parameters := path.Parameters
	if path.Get != nil {
		parameters = append(slices.Clone(parameters), path.Get.Parameters...)
	}
	for _, parameter := range parameters {
		if parameter.In == "query" && parameter.Name != "pretty" && parameter.Schema != nil {
			before := len(f.all)
			f.add(parameter.Name, *parameter.Schema, parameter.Description, parameter.Required, nil)
			for _, it := range f.all[before:] {
				// Upstream documents a list of strings as one string, which may be repeated in a query.
				it.many = it.many || it.kind == "string"
			}
		}
	}
	return f
}

func ofBody(path *spec3.Path, components *spec3.Components) fields {
	var f fields
	if path.Post == nil || path.Post.RequestBody == nil {
		return f
	}
	for _, content := range path.Post.RequestBody.Content {
		if content.Schema == nil {
			continue
		}
		body := resolve(*content.Schema, components)
		for name, property := range body.Properties {
			switch name {
			case "apiVersion", "kind":
			case "metadata":
				f.hasMetadata = true
			default:
				f.add(name, property, property.Description, slices.Contains(body.Required, name), components)
			}
		}
		break
	}
	slices.SortFunc(f.all, func(a, b *field) int { return strings.Compare(a.name, b.name) })
	return f
}

// resolve follows references, including a single reference in allOf, the form that schemas with defaults have.
func resolve(schema spec.Schema, components *spec3.Components) spec.Schema {
	for range 8 {
		reference := schema.Ref.String()
		if reference == "" && len(schema.AllOf) == 1 {
			reference = schema.AllOf[0].Ref.String()
		}
		if reference == "" || components == nil {
			return schema
		}
		next := components.Schemas[reference[strings.LastIndex(reference, "/")+1:]]
		if next == nil {
			return schema
		}
		schema = *next
	}
	return schema
}

// add adds a field if a flag can express its type.
func (f *fields) add(name string, schema spec.Schema, description string, required bool, components *spec3.Components) {
	schema = resolve(schema, components)
	if description == "" {
		description = schema.Description
	}
	it := &field{name: name, flag: flagName(name), description: strings.Join(strings.Fields(description), " "), required: required}
	switch {
	case schema.Type.Contains("array") && schema.Items != nil && schema.Items.Schema != nil:
		it.many, schema = true, resolve(*schema.Items.Schema, components)
	case schema.Type.Contains("object") && schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		it.keyed, schema = true, resolve(*schema.AdditionalProperties.Schema, components)
	}
	switch {
	case len(schema.Type) == 1 && slices.Contains([]string{"string", "integer", "number", "boolean"}, schema.Type[0]):
		it.kind = schema.Type[0]
	case schema.Format == "int-or-string", schema.Extensions["x-kubernetes-int-or-string"] == true:
		it.kind = "int-or-string"
	default:
		return
	}
	for _, value := range schema.Enum {
		it.enum = append(it.enum, fmt.Sprint(value))
	}
	f.all = append(f.all, it)
}

// flagName returns the flag for a field: --max-retries for maxRetries, --pod-ip for podIP.
func flagName(name string) string {
	var flag strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		switch {
		case unicode.IsUpper(r):
			if i > 0 && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) && letters[i-1] != '-' {
				flag.WriteByte('-')
			}
			flag.WriteRune(unicode.ToLower(r))
		case r == '_' || r == '.':
			flag.WriteByte('-')
		default:
			flag.WriteRune(r)
		}
	}
	return flag.String()
}

// flags returns the flags of the fields. A flag whose name is taken gets the prefix field-.
func (f *fields) flags(taken func(string) bool) *pflag.FlagSet {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, it := range f.all {
		if taken(it.flag) || flags.Lookup(it.flag) != nil {
			it.flag = "field-" + it.flag
		}
		usage := it.description
		if len(it.enum) > 0 {
			usage += " (" + strings.Join(it.enum, ", ") + ")"
		}
		if it.required {
			usage += " (required)"
		}
		flag := flags.VarPF(it, it.flag, "", strings.TrimSpace(strings.ReplaceAll(usage, "`", "'")))
		if it.kind == "boolean" && !it.many && !it.keyed {
			flag.NoOptDefVal = "true"
		}
	}
	return flags
}

// values returns the values of the fields that were given.
func (f fields) values() map[string]any {
	values := map[string]any{}
	for _, it := range f.all {
		if it.isSet {
			values[it.name] = it.value
		}
	}
	return values
}

var _ pflag.Value = &field{}

func (f *field) String() string {
	if f.value == nil {
		return ""
	}
	return fmt.Sprint(f.value)
}

func (f *field) Type() string {
	switch {
	case f.keyed:
		return "key=" + f.kind
	case f.kind == "boolean" && !f.many:
		return "bool" // pflag shows it without a value
	}
	return f.kind
}

func (f *field) Set(text string) error {
	f.isSet = true
	if f.keyed {
		key, text, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return fmt.Errorf("write it as KEY=VALUE")
		}
		value, err := f.parse(text)
		if err != nil {
			return err
		}
		entries, _ := f.value.(map[string]any)
		if entries == nil {
			entries = map[string]any{}
		}
		entries[key] = value
		f.value = entries
		return nil
	}
	value, err := f.parse(text)
	if err != nil {
		return err
	}
	if f.many {
		items, _ := f.value.([]any)
		f.value = append(items, value)
		return nil
	}
	f.value = value
	return nil
}

func (f *field) parse(text string) (any, error) {
	switch f.kind {
	case "integer":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		return n, nil
	case "number":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", text)
		}
		return n, nil
	case "boolean":
		is, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%q must be true or false", text)
		}
		return is, nil
	case "int-or-string":
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			return n, nil
		}
	}
	return text, nil
}
