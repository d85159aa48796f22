package generate

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"

	"k8s.io/gengo/v2/types"
	openapiutil "k8s.io/kube-openapi/pkg/util"
)

// clientSchema returns the OpenAPI document from which apply configurations are generated: the definitions of the
// sources' kinds and of all referenced types, by Go names. It holds only the fields that matter for apply.
func (l *packageSet) clientSchema(sources []*source) ([]byte, error) {
	definitions := map[string]any{}
	for _, s := range sources {
		wanted := map[*types.Type]bool{}
		var add func(t *types.Type)
		add = func(t *types.Type) {
			if !wanted[t] {
				wanted[t] = true
				eachReference(t, add)
			}
		}
		for _, t := range findObjects(l.universe[s.path]).kinds {
			add(t)
		}
		for t := range wanted {
			if hasOwnDefinition(t) {
				definitions[clientModel(t.Name.Package, t.Name.Name)] = ownDefinition(t.Name)
			}
		}
		files, err := l.openapiInto(s, s, wanted)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			p, err := partOf(f)
			if err != nil {
				return nil, err
			}
			if err := (schemaReader{s.path, p.imports}).read(p.body, definitions); err != nil {
				return nil, fmt.Errorf("read OpenAPI definitions of %s: %w", s.path, err)
			}
		}
	}
	return json.Marshal(map[string]any{
		"swagger": "2.0", "info": map[string]any{"title": "clients", "version": "v1"},
		"paths": map[string]any{}, "definitions": definitions,
	})
}

// clientModel returns the name by which applyconfiguration-gen looks for a type's definition.
func clientModel(importPath, name string) string {
	return openapiutil.ToRESTFriendlyName(importPath + "." + name)
}

// ownDefinition returns the definition of a type with a JSON encoding of its own. The types that encode as strings
// are well known; other types may hold anything.
func ownDefinition(name types.Name) map[string]any {
	switch name.String() {
	case metaPackage + ".Time", metaPackage + ".MicroTime", metaPackage + ".Duration",
		"k8s.io/apimachinery/pkg/api/resource.Quantity":
		return map[string]any{"type": "string"}
	case "k8s.io/apimachinery/pkg/util/intstr.IntOrString":
		return map[string]any{"type": "string", "format": "int-or-string"}
	case metaPackage + ".FieldsV1", runtimePackage + ".RawExtension":
		return map[string]any{"type": "object"}
	}
	return map[string]any{}
}

// schemaReader reads definitions from the Go code that openapi-gen generated.
type schemaReader struct {
	path    string            // of the code's package
	imports map[string]string // import paths by name
}

// read adds the definitions in body that into does not have yet.
func (r schemaReader) read(body string, into map[string]any) error {
	f, err := parser.ParseFile(token.NewFileSet(), "openapi.go", "package p\n"+body, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	schemas := map[string]ast.Expr{} // by function
	names := map[string]string{}     // of definitions, by function
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			pair, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Schema" && schemas[fn.Name.Name] == nil {
				schemas[fn.Name.Name] = pair.Value
				return false
			}
			if call, ok := pair.Value.(*ast.CallExpr); ok {
				if callee, ok := call.Fun.(*ast.Ident); ok && strings.HasPrefix(callee.Name, "schema_") {
					names[callee.Name] = r.model(pair.Key)
				}
			}
			return true
		})
	}
	for function, name := range names {
		if into[name] == nil && schemas[function] != nil {
			into[name] = r.value(schemas[function])
		}
	}
	return nil
}

// model returns the name of a definition, which is a string or T{}.OpenAPIModelName().
func (r schemaReader) model(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return openapiutil.ToRESTFriendlyName(text)
	case *ast.CallExpr:
		method, ok := e.Fun.(*ast.SelectorExpr)
		if !ok {
			return ""
		}
		literal, ok := method.X.(*ast.CompositeLit)
		if !ok {
			return ""
		}
		switch t := literal.Type.(type) {
		case *ast.Ident:
			return clientModel(r.path, t.Name)
		case *ast.SelectorExpr:
			alias := t.X.(*ast.Ident).Name
			return clientModel(r.imports[alias], t.Sel.Name)
		}
	}
	return ""
}

// schemaFields maps the fields of a schema that matter for apply to their JSON names. The fields of a field with an
// empty name are inlined.
var schemaFields = map[string]string{
	"SchemaProps": "", "VendorExtensible": "", "Extensions": "", "Schema": "",
	"Type": "type", "Format": "format", "Properties": "properties", "Items": "items", "AdditionalProperties": "additionalProperties",
	"Ref": "$ref", "AllOf": "allOf",
}

// value returns the JSON value of an expression, or nil if it does not matter for apply.
func (r schemaReader) value(e ast.Expr) any {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			return nil
		}
		return text
	case *ast.UnaryExpr:
		return r.value(e.X)
	case *ast.CallExpr:
		if callee, ok := e.Fun.(*ast.Ident); ok && callee.Name == "ref" && len(e.Args) == 1 {
			return "#/definitions/" + r.model(e.Args[0])
		}
		return nil
	case *ast.CompositeLit:
		return r.literal(e)
	}
	return nil
}

func (r schemaReader) literal(e *ast.CompositeLit) any {
	if _, isList := e.Type.(*ast.ArrayType); isList {
		list := []any{}
		for _, item := range e.Elts {
			if v := r.value(item); v != nil {
				list = append(list, v)
			}
		}
		return list
	}
	object := map[string]any{}
	for _, item := range e.Elts {
		pair, ok := item.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		name, known := "", true
		switch key := pair.Key.(type) {
		case *ast.BasicLit:
			name, _ = strconv.Unquote(key.Value)
		case *ast.Ident:
			name, known = schemaFields[key.Name]
		}
		v := r.value(pair.Value)
		inner, isObject := v.(map[string]any)
		switch {
		case !known || v == nil:
		case name != "":
			object[name] = v
		case isObject:
			for k, v := range inner {
				object[k] = v
			}
		}
	}
	return object
}
