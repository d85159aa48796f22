package generate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/types"
	openapiargs "k8s.io/kube-openapi/cmd/openapi-gen/args"
	"k8s.io/kube-openapi/pkg/common"
	openapigen "k8s.io/kube-openapi/pkg/generators"
)

// suppliedPackages hold the types that all APIs refer to. The server has their definitions, so generated files do not
// repeat them.
var suppliedPackages = []string{
	"k8s.io/apimachinery/pkg/api/resource",
	metaPackage,
	runtimePackage,
	"k8s.io/apimachinery/pkg/util/intstr",
	"k8s.io/apimachinery/pkg/version",
}

const (
	modelPackageTag = "k8s:openapi-model-package"
	openapiTag      = "k8s:openapi-gen"
)

// markOpenAPI names the package's models after its group version, as custom resources are named:
// com.example.wardle.v1beta1.Flunder. The names then survive a move of the package.
func (l *packageSet) markOpenAPI(s *source) {
	if _, found, _ := s.lookup(modelPackageTag); found || s.group == "" {
		return
	}
	pkg := l.universe[s.path]
	pkg.Comments = append(pkg.Comments, "+"+modelPackageTag+"="+defaultModelPackage(s))
}

func defaultModelPackage(s *source) string {
	labels := strings.Split(s.group, ".")
	slices.Reverse(labels)
	return strings.Join(append(labels, s.version), ".")
}

// models generates the OpenAPIModelName methods of the package's types.
func (l *packageSet) models(s *source) ([]*generator.File, error) {
	c, files := l.context(s, openapigen.NameSystems(), openapigen.DefaultNameSystem())
	args := openapiargs.New()
	args.OutputModelNameFile = "models.go"
	if err := c.ExecuteTargets(openapigen.GetModelNameTargets(c, args, nil)); err != nil {
		return nil, fmt.Errorf("generate OpenAPI model names of %s: %w", s.path, err)
	}
	return files.files, nil
}

// openapi generates the definitions of the package's API types and of all types that they refer to, except for the
// server's.
func (l *packageSet) openapi(s *source) ([]*generator.File, error) {
	return l.openapiInto(s, s, definitions(l.roots(s)))
}

// openapiInto generates the definitions of wanted, types that s refers to, for the package target.
func (l *packageSet) openapiInto(s, target *source, wanted map[*types.Type]bool) ([]*generator.File, error) {
	c, files := l.context(s, openapigen.NameSystems(), openapigen.DefaultNameSystem())
	args := openapiargs.New()
	args.OutputDir, args.OutputPkg, args.OutputFile = target.dir, target.path, "openapi.go"
	targets := openapigen.GetOpenAPITargets(c, args, nil)
	for _, t := range targets {
		t.(*generator.SimpleTarget).FilterFunc = func(_ *generator.Context, t *types.Type) bool { return wanted[t] }
	}
	// The generator's second file is a report of style violations, which it would print.
	for name := range c.FileTypes {
		if name != generator.GoFileType {
			c.FileTypes[name] = &outputCollector{}
		}
	}
	if err := c.ExecuteTargets(targets); err != nil {
		return nil, s.locate(fmt.Errorf("generate OpenAPI definitions of %s: %w", s.path, err))
	}
	return files.files, nil
}

// roots returns the types that clients can meet on their own: types that embed TypeMeta, and types with a tag that
// asks for a definition.
func (l *packageSet) roots(s *source) []*types.Type {
	v, _, _ := s.lookup(openapiTag)
	all := v.text == "true"
	var roots []*types.Type
	for _, t := range exportedTypes(l.universe[s.path]) {
		if t.Kind != types.Struct || hasTag(t, openapiTag, "false") {
			continue
		}
		if all || embeds(t, "TypeMeta") || hasTag(t, openapiTag, "true") {
			roots = append(roots, t)
		}
	}
	return roots
}

// definitions returns roots and every struct that their definitions refer to, except for those of supplied packages.
func definitions(roots []*types.Type) map[*types.Type]bool {
	found := map[*types.Type]bool{}
	var add func(t *types.Type)
	add = func(t *types.Type) {
		if !found[t] && !slices.Contains(suppliedPackages, t.Name.Package) {
			found[t] = true
			eachReference(t, add)
		}
	}
	for _, t := range roots {
		add(t)
	}
	return found
}

// eachReference calls do with each struct that the definition of t refers to,
// following the rules of the definitions' generator.
func eachReference(t *types.Type, do func(*types.Type)) {
	if hasOwnDefinition(t) {
		return
	}
	for _, m := range t.Members {
		if leftOut(m) {
			continue
		}
		jsonTag, tagged := reflect.StructTag(m.Tags).Lookup("json")
		if m.Embedded && tagged && (jsonTag == "" || strings.HasPrefix(jsonTag, ",")) {
			eachReference(deref(m.Type), do)
			continue
		}
		if name, _, _ := strings.Cut(jsonTag, ","); name == "-" || jsonTag != "" && name == "" {
			continue
		}
		if target := referenced(m.Type); target != nil {
			do(target)
		}
	}
}

// leftOut reports whether the definition has no property for m.
func leftOut(m types.Member) bool {
	return slices.ContainsFunc(m.CommentLines, func(line string) bool { return strings.TrimSpace(line) == "+"+openapiTag+"=false" })
}

// referenced returns the struct that a field of type t refers to, or nil.
func referenced(t *types.Type) *types.Type {
	t = deref(t)
	if known, _ := common.OpenAPITypeFormat(t.String()); known != "" {
		return nil
	}
	switch t.Kind {
	case types.Struct:
		return t
	case types.Map, types.Slice, types.Array:
		return referenced(t.Elem)
	}
	return nil
}

func deref(t *types.Type) *types.Type {
	for {
		switch t.Kind {
		case types.Alias:
			t = t.Underlying
		case types.Pointer:
			t = t.Elem
		default:
			return t
		}
	}
}

func hasOwnDefinition(t *types.Type) bool {
	for _, name := range []string{"OpenAPIDefinition", "OpenAPIV3Definition", "OpenAPISchemaType"} {
		if _, ok := t.Methods[name]; ok {
			return true
		}
	}
	return false
}
