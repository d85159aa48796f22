package convert

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	openapibuilder "k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	markedv1beta1 "github.com/annexapi/annex/internal/testing/shop/marked/v1beta1"
)

// marked returns the server of a kind with kubebuilder markers in one version. edit modifies its definition.
func marked[T, L any](t *testing.T, resource string, facts func() api.Facts, edit func(definition string) string) *define.Server {
	t.Helper()
	name := reflect.TypeFor[T]().Name()
	edited := func() api.Facts {
		f := facts()
		definitions := maps.Clone(f.CustomResources())
		definitions[name] = edit(definitions[name])
		f.CustomResources = func() map[string]string { return definitions }
		return f
	}
	k := &define.Kind{Resource: resource, ClusterScoped: resource == "pallets", Versions: []*define.Version{{
		Facts: edited, Type: reflect.TypeFor[T](), ListType: reflect.TypeFor[L]()}}}
	server := &define.Server{Name: "shop", Groups: []define.Group{{Name: "marked.shop.example.com", Kinds: []*define.Kind{k}}}}
	if err := define.Check(server); err != nil {
		t.Fatal(err)
	}
	return server
}

func TestDefinitions_markers_likeCRDServer(t *testing.T) {
	same := func(definition string) string { return definition }
	for name, server := range map[string]*define.Server{
		"Crate":         marked[markedv1.Crate, markedv1.CrateList](t, "crates", markedv1.API, same),
		"Crate/v1beta1": marked[markedv1beta1.Crate, markedv1beta1.CrateList](t, "crates", markedv1beta1.API, same),
		"Pallet":        marked[markedv1.Pallet, markedv1.PalletList](t, "pallets", markedv1.API, same),
		"Stack":         marked[markedv1.Stack, markedv1.StackList](t, "stacks", markedv1.API, same),
		"Stack/rules of fields": marked[markedv1.Stack, markedv1.StackList](t, "stacks", markedv1.API, func(string) string {
			room := `{"type":"object","properties":{"doors":{"type":"integer","format":"int32","default":4}}%s}`
			return `{"spec":{"group":"marked.shop.example.com","names":{"plural":"stacks","kind":"Stack","listKind":"StackList"},"scope":"Namespaced","versions":[{
				"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
				"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},
				"spec":{"type":"object","required":["weight","note"],"properties":{
					"weight":{"type":"integer","format":"int32","maximum":-1,"exclusiveMaximum":true},
					"note":{"type":"string","anyOf":[{"pattern":"^a"},{"maxLength":3}],"not":{"enum":["ab"]}},
					"tags":{"type":"array","nullable":true,"items":{"type":"string","minLength":1}},
					"rooms":{"type":"object","maxProperties":2,"additionalProperties":` + fmt.Sprintf(room, `,"minProperties":1`) + `},
					"roof":` + fmt.Sprintf(room, `,"nullable":true,"x-kubernetes-validations":[{"rule":"self.doors < 3","message":"no"}]`) + `,
					"base":{"type":"object","default":{},"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-embedded-resource":true,"properties":{"material":{"type":"string"}}},
					"layers":{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"object","required":["name"],"x-kubernetes-map-type":"atomic","properties":{"name":{"type":"string","format":"byte"}}}}}},
				"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`
		}),
		"Stack/anything": marked[markedv1.Stack, markedv1.StackList](t, "stacks", markedv1.API, func(string) string {
			return `{"spec":{"group":"marked.shop.example.com","names":{"plural":"stacks","kind":"Stack","listKind":"StackList"},"scope":"Namespaced","versions":[{
				"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
		}),
	} {
		t.Run(name, func(t *testing.T) {
			v := server.Kinds()[0].Versions[0]
			crd := v.Structural.Definition.DeepCopy()
			kind, list := v.New(), v.NewList()
			names := []string{util.GetCanonicalTypeName(kind), util.GetCanonicalTypeName(list)}
			m, err := New(server)
			if err != nil {
				t.Fatal(err)
			}
			definitions, named := Definitions(server), m.Namer().GetDefinitionName
			compare := func(format string, ours, theirs map[string]spec.Schema) {
				t.Helper()
				for i, name := range []string{crd.Spec.Names.Kind, crd.Spec.Names.ListKind} {
					want, ok := theirs["com.example.shop.marked."+v.GroupVersion.Version+"."+name]
					if !ok {
						t.Fatalf("no %s in what apiextensions publishes", name)
					}
					model, _ := named(names[i])
					if got, want := flat(t, ours, ours[model]), flat(t, theirs, want); !reflect.DeepEqual(got, want) {
						t.Errorf("%s: %s is\n%s\nwant\n%s", format, name, pretty(got), pretty(want))
					}
				}
			}

			v3, err := builder3.BuildOpenAPIDefinitionsForResources(
				&common.OpenAPIV3Config{GetDefinitions: definitions.V3, GetDefinitionName: named},
				names...)
			if err != nil {
				t.Fatal(err)
			}
			ours := map[string]spec.Schema{}
			for name, schema := range v3 {
				ours[name] = *schema
			}
			published, err := builder.BuildOpenAPIV3(crd, v.GroupVersion.Version, builder.Options{IncludeSelectableFields: true})
			if err != nil {
				t.Fatal(err)
			}
			theirs := map[string]spec.Schema{}
			for name, schema := range published.Components.Schemas {
				theirs[name] = *schema
			}
			compare("v3", ours, theirs)

			v2, err := openapibuilder.BuildOpenAPIDefinitionsForResources(
				&common.Config{GetDefinitions: definitions.V2, GetDefinitionName: named},
				names...)
			if err != nil {
				t.Fatal(err)
			}
			swagger, err := builder.BuildOpenAPIV2(crd, v.GroupVersion.Version, builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				t.Fatal(err)
			}
			compare("v2", v2.Definitions, swagger.Definitions)
		})
	}
}

func TestDefinitions_invalidZero_isNoDefault(t *testing.T) {
	one, pattern := int64(1), "^a"
	least := 1.0
	text := func(s spec.Schema) spec.Schema { s.Type, s.Default = []string{"string"}, ""; return s }
	number := func(s spec.Schema) spec.Schema { s.Type, s.Default = []string{"integer"}, 0; return s }
	properties := map[string]spec.Schema{
		"empty":    text(spec.Schema{}),
		"long":     text(spec.Schema{SchemaProps: spec.SchemaProps{MinLength: &one}}),
		"pattern":  text(spec.Schema{SchemaProps: spec.SchemaProps{Pattern: pattern}}),
		"enum":     text(spec.Schema{SchemaProps: spec.SchemaProps{Enum: []any{"a", "b"}}}),
		"enum too": text(spec.Schema{SchemaProps: spec.SchemaProps{Enum: []any{"a", ""}}}),
		"zero":     number(spec.Schema{}),
		"least":    number(spec.Schema{SchemaProps: spec.SchemaProps{Minimum: &least}}),
		"declared": {SchemaProps: spec.SchemaProps{Type: []string{"string"}, Default: "x", Pattern: pattern}},
		"object":   {SchemaProps: spec.SchemaProps{Ref: spec.MustCreateRef("#/definitions/a"), Default: map[string]any{}}},
	}
	dropContradictions(common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{Properties: properties}}})
	for name, want := range map[string]any{"empty": "", "long": nil, "pattern": nil, "enum": nil, "enum too": "", "zero": 0, "least": nil,
		"declared": "x", "object": map[string]any{}} {
		if got := properties[name].Default; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// flat returns a schema as a document without descriptions and with all references resolved, except for metadata.
func flat(t *testing.T, definitions map[string]spec.Schema, schema spec.Schema) any {
	t.Helper()
	data, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	return writtenOut(t, definitions, doc)
}

func writtenOut(t *testing.T, definitions map[string]spec.Schema, doc any) any {
	t.Helper()
	switch doc := doc.(type) {
	case []any:
		for i, inner := range doc {
			doc[i] = writtenOut(t, definitions, inner)
		}
	case map[string]any:
		if text, ok := doc["description"].(string); ok && text != "" {
			delete(doc, "description")
		}
		for key, inner := range doc {
			if strings.HasPrefix(key, "x-kubernetes-patch-") {
				delete(doc, key)
				continue
			}
			doc[key] = writtenOut(t, definitions, inner)
		}
		// A reference with sibling keywords is wrapped in allOf.
		if all, _ := doc["allOf"].([]any); len(all) == 1 && doc["type"] == nil {
			delete(doc, "allOf")
			maps.Copy(doc, all[0].(map[string]any))
		}
		reference, _ := doc["$ref"].(string)
		name := reference[strings.LastIndex(reference, "/")+1:]
		if reference == "" || strings.HasPrefix(name, "io.k8s.") {
			return doc
		}
		delete(doc, "$ref")
		model, ok := definitions[name]
		if !ok {
			t.Fatalf("no definition of %s", name)
		}
		for key, value := range flat(t, definitions, model).(map[string]any) {
			if _, ok := doc[key]; !ok {
				doc[key] = value
			}
		}
	}
	return doc
}

func pretty(doc any) string {
	data, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}
