package generate

import (
	"bytes"
	"slices"
	"strings"
	"text/template"

	"k8s.io/gengo/v2/types"
)

// facts is the data for the functions that a server and its clients call.
type facts struct {
	Group, Version string
	Objects        []string // types to register
	Defaulted      []string // types with a SetObjectDefaults function

	// Register is false if the package declares AddToScheme itself. Defaults names the function that registers its
	// defaults, empty if there are none; if OwnDefaults is set, it is the package's own function.
	Register    bool
	Defaults    string
	OwnDefaults bool

	Converted bool     // there are conversions to the hub
	Validated []string // types with a Validate function

	// CustomResources is set if there is a function customResources.
	CustomResources bool
	// Messages is set if there is a function that returns the schemas of other objects.
	Messages bool

	Options []string // options that validation tags name
}

// factsOf collects the facts; functions are the names of the package's functions, both declared and generated.
func factsOf(s *source, o objects, functions map[string]bool) facts {
	f := facts{Converted: functions["registerConversions"], Group: s.group, Version: s.version, Register: !s.declares("AddToScheme")}
	for _, t := range o.all() {
		f.Objects = append(f.Objects, t.Name.Name)
		if functions["SetObjectDefaults_"+t.Name.Name] {
			f.Defaulted = append(f.Defaulted, t.Name.Name)
		}
	}
	for _, t := range slices.Concat(o.kinds, o.other) {
		if functions["Validate_"+t.Name.Name] && !s.declares("Validate_"+t.Name.Name) {
			f.Validated = append(f.Validated, t.Name.Name)
		}
	}
	slices.Sort(f.Validated)
	f.CustomResources, f.Messages = functions[customResourcesFunction], functions[messagesFunction]
	switch {
	case s.declares("RegisterDefaults"):
		f.Defaults, f.OwnDefaults = "RegisterDefaults", true
	case len(f.Defaulted) > 0:
		f.Defaults = "registerDefaults"
	}
	return f
}

var factsTemplate = template.Must(template.New("facts").Parse(`
// API returns the generated facts about this package.
func API() api.Facts {
	return api.Facts{
		GroupVersion: schema.GroupVersion{Group: {{printf "%q" .Group}}, Version: {{printf "%q" .Version}}},
		AddToScheme: AddToScheme,
		{{- if .Defaults}}
		AddDefaults: {{.Defaults}},
		{{- end}}
		{{- if .Converted}}
		AddConversions: registerConversions,
		{{- end}}
		{{- if .Validated}}
		AddValidations: registerValidations,
		{{- end}}
		{{- with .Options}}
		ValidationOptions: []string{ {{- range $i, $name := .}}{{if $i}}, {{end}}{{printf "%q" $name}}{{end -}} },
		{{- end}}
		OpenAPI: openAPIDefinitions,
		{{- if .CustomResources}}
		CustomResources: customResources,
		{{- end}}
		{{- if .Messages}}
		Messages: messageSchemas,
		{{- end}}
	}
}
{{if .Register}}
// AddToScheme registers the types of this package under {{with .Group}}{{.}}/{{end}}{{.Version}}, and the
// meta types that clients need with them. Calling it again with the same scheme is harmless.
func AddToScheme(scheme *runtime.Scheme) error {
	gv := schema.GroupVersion{Group: {{printf "%q" .Group}}, Version: {{printf "%q" .Version}}}
	scheme.AddKnownTypes(gv,
		{{- range .Objects}}
		&{{.}}{},
		{{- end}}
	)
	metav1.AddToGroupVersion(scheme, gv)
	return nil
}
{{end}}
{{- if and .Defaults (not .OwnDefaults)}}
// registerDefaults registers the defaulting functions of this package. Each sets the
// defaults of everything within its object.
func registerDefaults(scheme *runtime.Scheme) error {
	{{- range .Defaulted}}
	scheme.AddTypeDefaultingFunc(&{{.}}{}, func(obj any) { SetObjectDefaults_{{.}}(obj.(*{{.}})) })
	{{- end}}
	return nil
}
{{end}}
{{- if .Validated}}
// registerValidations registers the declarative validation of this package's objects,
// for all their subresources.
func registerValidations(scheme *runtime.Scheme) error {
	{{- range .Validated}}
	scheme.AddValidationFunc(&{{.}}{}, func(ctx context.Context, op operation.Operation, obj, oldObj any) field.ErrorList {
		return Validate_{{.}}(ctx, op, nil, obj.(*{{.}}), safe.Cast[*{{.}}](oldObj))
	})
	{{- end}}
	return nil
}
{{end}}`))

// render returns the facts as code.
func (f facts) render() (part, error) {
	var b bytes.Buffer
	if err := factsTemplate.Execute(&b, f); err != nil {
		return part{}, err
	}
	return part{
		name: "registration",
		body: b.String(),
		imports: map[string]string{
			"api":       apiPackage,
			"metav1":    metaPackage,
			"runtime":   runtimePackage,
			"schema":    schemaPackage,
			"context":   "context",
			"operation": operationPackage,
			"field":     fieldPackage,
			"safe":      safePackage,
		},
	}, nil
}

// stub returns stand-ins for all declarations that generate may write into the package, so that code which uses them
// type-checks before they exist.
func (l *packageSet) stub(s *source) string {
	pkg := l.universe.Package(s.path)
	conversions, imports := l.conversionStubs(s)
	var b strings.Builder
	b.WriteString("package " + s.name + "\n\nimport (\n" +
		"\tannexstubapi \"" + apiPackage + "\"\n\tannexstubruntime \"" + runtimePackage + "\"\n")
	if s.hasValidations() {
		imports["annexstubcontext"], imports["annexstuboperation"], imports["annexstubfield"] = "context", operationPackage, fieldPackage
		conversions += "var _ annexstubcontext.Context\nvar _ annexstuboperation.Operation\nvar _ annexstubfield.Path\n"
	}
	for _, name := range sortedKeys(imports) {
		b.WriteString("\t" + name + " \"" + imports[name] + "\"\n")
	}
	b.WriteString(")\n\nvar _ annexstubapi.Facts\nvar _ annexstubruntime.Object\n" + conversions)
	declare := func(name, signature string) {
		if !s.declares(name) {
			b.WriteString("func " + name + signature + " { panic(0) }\n")
		}
	}
	if s.group != "" {
		declare("API", "() annexstubapi.Facts")
		declare("AddToScheme", "(*annexstubruntime.Scheme) error")
	}
	objects := findObjects(pkg).all()
	for _, t := range exportedTypes(pkg) {
		name := t.Name.Name
		if s.hasValidations() && (t.Kind == types.Struct || t.Kind == types.Alias) {
			value := "*" + name
			if kind := deref(t).Kind; kind == types.Slice || kind == types.Map {
				value = name
			}
			declare(
				"Validate_"+name,
				"(annexstubcontext.Context, annexstuboperation.Operation, *annexstubfield.Path, "+value+", "+value+") annexstubfield.ErrorList",
			)
		}
		recv := "*" + name
		switch deref(t).Kind {
		case types.Struct:
		case types.Map, types.Slice:
			recv = name
		default:
			continue
		}
		method := func(recv, method, signature string) {
			if !s.methods[name][method] {
				b.WriteString("func (" + recv + ") " + method + signature + " { panic(0) }\n")
			}
		}
		method(recv, "DeepCopyInto", "(*"+name+")")
		method(recv, "DeepCopy", "() "+recv)
		if t.Kind == types.Struct {
			method(name, "OpenAPIModelName", "() string")
		}
		if s.protobuf {
			protobufStub(method, t)
		}
		if slices.Contains(objects, t) {
			method("*"+name, "DeepCopyObject", "() annexstubruntime.Object")
			if s.group != "" {
				declare("SetObjectDefaults_"+name, "(*"+name+")")
			}
		}
	}
	return b.String()
}
