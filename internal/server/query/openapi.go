package query

import (
	"fmt"
	"maps"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Described returns, by version, the resources that have a Model.
func (a *API) Described() map[schema.GroupVersion][]*Resource { return Described(a.config.Resources()) }

// Described returns, by version, the resources that have a Model.
func Described(resources []*Resource) map[schema.GroupVersion][]*Resource {
	return byVersion(resources, func(r *Resource) bool { return r.Model != nil })
}

// Defined returns, by version, the resources that have Schemas.
func (a *API) Defined() map[schema.GroupVersion][]*Resource {
	return byVersion(a.config.Resources(), func(r *Resource) bool { return r.Model == nil && r.Schemas != nil })
}

func byVersion(resources []*Resource, wanted func(*Resource) bool) map[schema.GroupVersion][]*Resource {
	all := map[schema.GroupVersion][]*Resource{}
	for _, r := range resources {
		if wanted(r) {
			all[r.GroupVersion()] = append(all[r.GroupVersion()], r)
		}
	}
	return all
}

// PathOf returns the path of a version, without resources.
func (a *API) PathOf(gv schema.GroupVersion) string {
	group := gv.Group
	if group == "" {
		group = core
	}
	return a.config.Prefix + "/" + group + "/" + gv.Version
}

// Document describes the queries of resources of one version in OpenAPI v3, as Paths.Document.
func (a *API) Document(resources []*Resource, nameOf func(model runtime.Object) string) *spec3.OpenAPI {
	return Paths(a.describePaths).Document(resources, nameOf)
}

// DocumentOfDefined describes the queries of resources of one version that have Schemas.
func (a *API) DocumentOfDefined(resources []*Resource) (*spec3.OpenAPI, error) {
	return Paths(a.describePaths).DocumentOfDefined(resources)
}

// Paths adds the paths of a resource to a document. The schema of its objects is called name.
type Paths func(document *spec3.OpenAPI, r *Resource, name string)

// Document returns a document of resources of one version that have a Model. nameOf returns the name of a model's schema in
// the document's components, which the caller adds.
func (add Paths) Document(resources []*Resource, nameOf func(model runtime.Object) string) *spec3.OpenAPI {
	document := &spec3.OpenAPI{Version: "3.0.0", Paths: &spec3.Paths{Paths: map[string]*spec3.Path{}}}
	for _, r := range resources {
		add(document, r, nameOf(r.Model))
	}
	return document
}

// DocumentOfDefined returns a document of resources of one version that have Schemas, which it contains.
func (add Paths) DocumentOfDefined(resources []*Resource) (*spec3.OpenAPI, error) {
	document := &spec3.OpenAPI{
		Version:    "3.0.0",
		Paths:      &spec3.Paths{Paths: map[string]*spec3.Path{}},
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{}},
	}
	for _, r := range resources {
		schemas, name, err := r.Schemas()
		if err != nil {
			return nil, fmt.Errorf("schemas of %s: %w", r.Resource, err)
		}
		maps.Copy(document.Components.Schemas, schemas)
		add(document, r, name)
	}
	return document, nil
}

// describePaths adds the paths of a resource whose objects have the schema called name.
func (a *API) describePaths(document *spec3.OpenAPI, r *Resource, name string) {
	operation := r.operation(spec.RefSchema("#/components/schemas/" + name))
	at := a.PathOf(r.GroupVersion())
	document.Paths.Paths[at+"/"+r.Resource] = &spec3.Path{PathProps: spec3.PathProps{Get: operation}}
	if !r.Namespaced {
		return
	}
	inOne := *operation
	inOne.OperationId += "InNamespace"
	namespace := spec3.Parameter{
		ParameterProps: spec3.ParameterProps{Name: "namespace", In: "path", Required: true, Schema: spec.StringProperty()},
	}
	document.Paths.Paths[at+"/namespaces/{namespace}/"+r.Resource] = &spec3.Path{
		PathProps: spec3.PathProps{Get: &inOne, Parameters: []*spec3.Parameter{&namespace}},
	}
}

func (r *Resource) operation(item *spec.Schema) *spec3.Operation {
	text := "objects of kind " + r.Kind + ", sorted, filtered and counted"
	if r.Watched {
		text += "; with watch=true, followed by their changes"
	}
	content := map[string]*spec3.MediaType{runtime.ContentTypeJSON: {MediaTypeProps: spec3.MediaTypeProps{Schema: pageSchema(item)}}}
	if r.Watched {
		content[eventStream] = &spec3.MediaType{MediaTypeProps: spec3.MediaTypeProps{Schema: spec.StringProperty()}}
	}
	answer := &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "OK", Content: content}}
	return &spec3.Operation{OperationProps: spec3.OperationProps{
		Tags:        []string{"query"},
		Description: text,
		OperationId: "query" + r.OperationName(),
		Parameters:  r.parameters(),
		Responses:   &spec3.Responses{ResponsesProps: spec3.ResponsesProps{StatusCodeResponses: map[int]*spec3.Response{http.StatusOK: answer}}},
	}}
}

// OperationName returns the end of the identifiers of the resource's operations.
func (r *Resource) OperationName() string {
	var name strings.Builder
	for word := range strings.FieldsFuncSeq(r.Group+"."+r.Version+"."+r.Resource, func(c rune) bool { return c == '.' || c == '-' }) {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// pageSchema returns the schema of a page.
func pageSchema(item *spec.Schema) *spec.Schema {
	count := spec.Int64Property()
	facet := object(map[string]spec.Schema{"value": *nullable(spec.StringProperty()), "count": *count}, "value", "count")
	text := spec.StringProperty()
	column := object(map[string]spec.Schema{
		"name": *text, "type": *text, "format": *text, "description": *text, "priority": *spec.Int32Property(),
		"sortBy": *saying(text, "field that the column is sorted by; absent if it is not sorted"),
	}, "name", "type")
	return object(map[string]spec.Schema{
		"items":           *spec.ArrayProperty(item),
		"totalItems":      *saying(count, "number of objects on all pages"),
		"resourceVersion": *saying(spec.StringProperty(), "resource version of the page; a watch may continue from it"),
		"cursor":          *saying(spec.StringProperty(), "cursor of the next page; absent on the last page"),
		"facets":          *spec.MapProperty(spec.ArrayProperty(facet)),
		"columns":         *spec.ArrayProperty(column),
		"rows":            *saying(spec.ArrayProperty(spec.ArrayProperty(&spec.Schema{})), "cells of each item"),
	}, "items", "totalItems", "resourceVersion")
}

func object(properties map[string]spec.Schema, required ...string) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: properties, Required: required}}
}

func nullable(s *spec.Schema) *spec.Schema {
	s.Nullable = true
	return s
}

func saying(s *spec.Schema, text string) *spec.Schema {
	copied := *s
	copied.Description = text
	return &copied
}

// parameters returns the parameters of every resource, and of the fields of this one.
func (r *Resource) parameters() []*spec3.Parameter {
	var all []*spec3.Parameter
	add := func(name, description string, s *spec.Schema) {
		all = append(all, &spec3.Parameter{ParameterProps: spec3.ParameterProps{Name: name, In: "query", Description: description, Schema: s}})
	}
	bounded := func(least, most, otherwise float64) *spec.Schema {
		s := spec.Int64Property()
		s.Minimum, s.Maximum, s.Default = &least, &most, otherwise
		return s
	}
	fields := r.fields()
	var sortable []any
	for _, f := range fields {
		if f.Sortable {
			sortable = append(sortable, f.Name)
		}
	}
	by := spec.StringProperty()
	by.Enum = sortable
	add("page", "number of the page", bounded(1, lastPage, 1))
	add("limit", "number of items on a page; 0 only counts", bounded(0, largestLimit, defaultLimit))
	add("cursor", "cursor of the page, from the previous page", spec.StringProperty())
	add("sortBy", "order of the items", by)
	add("ascending", "false is the reverse", spec.BooleanProperty())
	add("name", "part of the name", spec.StringProperty())
	add(
		"q",
		"words that the name, namespace, labels, columns or texts of an object must contain; texts are "+strings.Join(texts(fields), ", "),
		spec.StringProperty(),
	)
	add("labelSelector", "as of lists", spec.StringProperty())
	add("fieldSelector", "as of lists", spec.StringProperty())
	add("fields", "comma-separated paths of fields that items have in addition to their identity", spec.StringProperty())
	add("showManagedFields", "include managedFields in items", spec.BooleanProperty())
	add("at", "a revision, a time or an age such as -2m: a page as of then", spec.StringProperty())
	add("columns", "add the columns of the kind's table, and a row for each item", spec.BooleanProperty())
	add("failing", "whether a condition in the status fails", spec.BooleanProperty())
	add("facets", "comma-separated fields whose values to count: "+list(names(fields), []string{"labels"}), spec.StringProperty())
	if r.Watched {
		add("watch", "follow changes of the objects", spec.BooleanProperty())
		add("resourceVersion", "where a tail goes on", spec.StringProperty())
	}
	for _, f := range fields {
		for _, operator := range append([]string{""}, operators...) {
			switch {
			case operator == "" && f.Name == "name", operator == "contains" && f.Type != ordered.String:
			case operator == "":
				add(f.Name, "one of these values", spec.ArrayProperty(schemaOf(f)))
			default:
				add(fmt.Sprintf("%s[%s]", f.Name, operator), f.Description, schemaOf(f))
			}
		}
	}
	return all
}

func texts(fields []ordered.Field) []string {
	var all []string
	for _, f := range fields {
		if f.Text {
			all = append(all, f.Name)
		}
	}
	return all
}

func schemaOf(f ordered.Field) *spec.Schema {
	switch f.Type {
	case ordered.Number:
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"number"}}}
	case ordered.Boolean:
		return spec.BooleanProperty()
	case ordered.Time:
		return spec.DateTimeProperty()
	}
	return spec.StringProperty()
}
