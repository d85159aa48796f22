package upstream

import (
	"testing"

	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A handler may have paths next to those of queries, and methods at the same paths. Its document has both.
func TestDocumentSet_samePath_joinsDocuments(t *testing.T) {
	operation := func(id string) *spec3.Operation {
		return &spec3.Operation{OperationProps: spec3.OperationProps{OperationId: id}}
	}
	parameter := func(name string) *spec3.Parameter {
		return &spec3.Parameter{ParameterProps: spec3.ParameterProps{Name: name}}
	}
	schema := func(description string) *spec.Schema {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Description: description}}
	}
	own := &spec3.OpenAPI{
		Info: &spec.Info{InfoProps: spec.InfoProps{Title: "own"}},
		Paths: &spec3.Paths{Paths: map[string]*spec3.Path{
			"/q/own":  {PathProps: spec3.PathProps{Get: operation("own")}},
			"/q/both": {PathProps: spec3.PathProps{Post: operation("post"), Parameters: []*spec3.Parameter{parameter("p")}}},
			"/q/same": {PathProps: spec3.PathProps{Get: operation("mine")}},
		}},
		Components: &spec3.Components{
			Schemas:         map[string]*spec.Schema{"own": schema("own"), "both": schema("own")},
			SecuritySchemes: spec3.SecuritySchemes{"b": nil},
		},
	}
	queries := &spec3.OpenAPI{
		Info: &spec.Info{InfoProps: spec.InfoProps{Title: "queries"}},
		Paths: &spec3.Paths{Paths: map[string]*spec3.Path{
			"/q/both": {PathProps: spec3.PathProps{Get: operation("get"), Parameters: []*spec3.Parameter{parameter("q")}}},
			"/q/same": {PathProps: spec3.PathProps{Get: operation("theirs")}},
			"/q/more": {PathProps: spec3.PathProps{Get: operation("more")}},
		}},
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{"more": schema("queries"), "both": schema("queries")}},
	}
	all, tag, err := joined(cached.Static(own, "1"), cached.Static(queries, "2")).Get()
	if err != nil {
		t.Fatal(err)
	}
	both := all.Paths.Paths["/q/both"]
	if tag != "1-2" || all.Info.Title != "own" || len(all.Paths.Paths) != 4 || len(all.Components.Schemas) != 3 ||
		len(all.Components.SecuritySchemes) != 1 {
		t.Errorf("%s %+v", tag, all)
	}
	if both.Post.OperationId != "post" || both.Post.Parameters[0].Name != "p" || both.Get.OperationId != "get" ||
		both.Get.Parameters[0].Name != "q" ||
		len(both.Parameters) != 0 {
		t.Errorf("a path of both: %+v", both)
	}
	if all.Paths.Paths["/q/same"].Get.OperationId != "mine" || all.Components.Schemas["both"].Description != "own" {
		t.Error("the handler's does not come first")
	}
	if len(own.Paths.Paths) != 3 || len(queries.Paths.Paths) != 3 || len(own.Components.Schemas) != 2 ||
		queries.Paths.Paths["/q/both"].Get.Parameters != nil {
		t.Error("a document has been changed")
	}
	if none, _, err := joined(
		cached.Static(&spec3.OpenAPI{Components: &spec3.Components{}}, ""),
		cached.Static(queries, ""),
	).Get(); err != nil ||
		len(none.Paths.Paths) != 3 {
		t.Errorf("a handler without paths: %v", err)
	}
}
