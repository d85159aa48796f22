package history

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/server/query"
)

// PathOf returns the path of a version, without resources.
func PathOf(gv schema.GroupVersion) string {
	group := gv.Group
	if group == "" {
		group = "core"
	}
	return Prefix + "/" + group + "/" + gv.Version
}

// Described returns the resources that have a Model, by version.
func (a *API) Described() map[schema.GroupVersion][]*query.Resource {
	return query.Described(a.config.Resources())
}

// Document describes the history of resources of one version in OpenAPI v3, as query.Paths.Document.
func Document(resources []*query.Resource, nameOf func(model runtime.Object) string) *spec3.OpenAPI {
	return query.Paths(describe).Document(resources, nameOf)
}

// DocumentOfDefined is Document for resources of one version that have Schemas.
func DocumentOfDefined(resources []*query.Resource) (*spec3.OpenAPI, error) {
	return query.Paths(describe).DocumentOfDefined(resources)
}

// describe adds the paths of a resource whose objects have the schema called name.
func describe(document *spec3.OpenAPI, r *query.Resource, name string) {
	item := spec.RefSchema("#/components/schemas/" + name)
	operation := func(verb, text string, answer *spec.Schema, parameters ...*spec3.Parameter) *spec3.Operation {
		return &spec3.Operation{OperationProps: spec3.OperationProps{
			Tags: []string{"history"}, Description: text, OperationId: verb + r.OperationName(), Parameters: parameters,
			Responses: &spec3.Responses{ResponsesProps: spec3.ResponsesProps{StatusCodeResponses: map[int]*spec3.Response{
				http.StatusOK: {ResponseProps: spec3.ResponseProps{Description: "OK", Content: inJSON(answer)}},
			}}},
		}}
	}
	text, flag := spec.StringProperty(), spec.BooleanProperty()
	most := fmt.Sprintf("largest number of items, %d by default and at most %d", defaultLimit, largestLimit)
	limit := parameter("limit", most, spec.Int64Property())
	before := parameter("before", "revision of which only older ones are listed, from the page before", text)
	read := operation("readHistory", "the revisions of an object of kind "+r.Kind+", the newest first; with at, the object as it "+
		"was; with from, both objects and what changed between them", &spec.Schema{SchemaProps: spec.SchemaProps{OneOf: []spec.Schema{
		*pageOf(revisionSchema()), *item, *properties("from", *item, "to", *item, "changes", *spec.ArrayProperty(changeSchema()), "more", *flag),
	}}}, limit, before,
		parameter("at", "a revision, a time or an age such as -2m", text), parameter("from", "the first moment of a difference", text),
		parameter("to", "the second moment of a difference, now by default", text))
	change := operation("changeBack", "set the changes of a revision back, or make the object as it was, by a new write", item,
		parameter("fieldManager", "manager of the write", text), parameter("dryRun", "All, to store nothing", text))
	change.RequestBody = &spec3.RequestBody{RequestBodyProps: spec3.RequestBodyProps{
		Required: true, Content: inJSON(properties("undo", *text, "restore", *text, "dryRun", *flag)),
	}}
	always := spec.StringProperty()
	always.Enum = []any{"true"}
	list := operation("listDeleted", "the deleted objects of kind "+r.Kind+", the last deletion first", pageOf(properties(
		"name", *text, "namespace", *text, "uid", *text, "revision", *text, "time", *text, "user", *text)),
		required(parameter("deleted", "lists deleted objects", always)), limit, before)

	root, places := PathOf(r.GroupVersion()), []*spec3.Parameter(nil)
	if r.Namespaced {
		document.Paths.Paths[root+"/"+r.Resource] = &spec3.Path{PathProps: spec3.PathProps{Get: list}}
		inOne := *list
		inOne.OperationId += "InNamespace"
		list = &inOne
		root, places = root+"/namespaces/{namespace}", append(places, inPath("namespace"))
	}
	root += "/" + r.Resource
	document.Paths.Paths[root] = &spec3.Path{PathProps: spec3.PathProps{Get: list, Parameters: places}}
	document.Paths.Paths[root+"/{name}"] = &spec3.Path{PathProps: spec3.PathProps{
		Get: read, Post: change, Parameters: append(places[:len(places):len(places)], inPath("name")),
	}}
}

func inJSON(s *spec.Schema) map[string]*spec3.MediaType {
	return map[string]*spec3.MediaType{runtime.ContentTypeJSON: {MediaTypeProps: spec3.MediaTypeProps{Schema: s}}}
}

func parameter(name, description string, s *spec.Schema) *spec3.Parameter {
	return &spec3.Parameter{ParameterProps: spec3.ParameterProps{Name: name, In: "query", Description: description, Schema: s}}
}

func inPath(name string) *spec3.Parameter {
	return &spec3.Parameter{ParameterProps: spec3.ParameterProps{Name: name, In: "path", Required: true, Schema: spec.StringProperty()}}
}

func required(p *spec3.Parameter) *spec3.Parameter {
	p.Required = true
	return p
}

// properties returns the schema of an object with properties, given as names and schemas.
func properties(pairs ...any) *spec.Schema {
	all := map[string]spec.Schema{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i].(string)] = pairs[i+1].(spec.Schema)
	}
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: all}}
}

func pageOf(item *spec.Schema) *spec.Schema {
	text := spec.StringProperty()
	return properties("items", *spec.ArrayProperty(item), "since", *properties("revision", *text, "time", *text), "before", *text)
}

func revisionSchema() *spec.Schema {
	text := spec.StringProperty()
	return properties("revision", *text, "time", *text, "operation", *text, "user", *text, "managers", *spec.ArrayProperty(text),
		"subresource", *text, "generation", *spec.Int64Property(), "changes", *spec.ArrayProperty(changeSchema()),
		"more", *spec.BooleanProperty())
}

func changeSchema() *spec.Schema {
	return properties("path", *spec.StringProperty(), "from", spec.Schema{}, "to", spec.Schema{})
}
