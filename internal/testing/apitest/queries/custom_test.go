package queries

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// definition defines gadgets, in two versions with columns and a selectable field.
func definition() object {
	schema := object{"openAPIV3Schema": object{"type": "object", "properties": object{"spec": object{"type": "object", "properties": object{
		"cost": object{
			"type": "number",
		},
		"color": object{"type": "string"},
		"since": object{"type": "string", "format": "date-time"},
		"ready": object{"type": "boolean"},
	}}}}}
	version := func(name string, stored bool) object {
		return object{
			"name": name, "served": true, "storage": stored, "schema": schema,
			"selectableFields": []object{{"jsonPath": ".spec.color"}},
			"additionalPrinterColumns": []object{
				{"name": "Cost", "type": "number", "jsonPath": ".spec.cost", "description": "in euros"},
				{"name": "Since", "type": "date", "jsonPath": ".spec.since"},
				{"name": "Ready", "type": "boolean", "jsonPath": ".spec.ready"},
				{"name": "Odd", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Odd')].status"},
				{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
			},
		}
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": "gadgets.stable.example.com"},
		"spec": object{
			"group": "stable.example.com", "scope": "Namespaced", "names": object{"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
			"versions": []object{version("v1", true), version("v2", false)},
		},
	}
}

func TestCustomResources_columns(t *testing.T) {
	t.Parallel()
	server := shop()
	server.ControlPlane = controlplane.New(controlplane.Options{})
	c := start(t, server, annex.Options{})
	c.must(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
	gadgets := "/query/stable.example.com/v1/gadgets"
	testwait.Until(t, "gadgets can be queried", func() bool {
		code, _ := c.query(gadgets)
		return code == http.StatusOK
	})
	for i, spec := range []object{
		{"cost": 9.5, "color": "red", "ready": true, "since": "2026-01-02T00:00:00Z"}, {"cost": 10, "color": "blue"},
		{"cost": -1, "color": "red", "since": "2025-01-01T00:00:00+02:00"}, {"color": "green", "ready": false},
	} {
		c.must(http.MethodPost, "/apis/stable.example.com/v1/namespaces/default/gadgets", object{
			"apiVersion": "stable.example.com/v1", "kind": "Gadget", "metadata": object{"name": fmt.Sprint("g", i)}, "spec": spec,
		})
	}
	for _, version := range []string{"v1", "v2"} {
		gadgets := "/query/stable.example.com/" + version + "/gadgets"
		c.same(gadgets+"?sortBy=spec.cost", "g3", "g2", "g0", "g1")
		c.same(gadgets+"?sortBy=spec.cost&ascending=false&limit=2", "g1", "g0")
		c.same(gadgets+"?spec.cost[gt]=9", "g0", "g1")
		c.same(gadgets+"?spec.color=red&sortBy=spec.since", "g2", "g0")
		c.same(gadgets+"?spec.since[gte]=2025-06-01T00:00:00Z", "g0")
		c.same(gadgets+"?spec.ready=true", "g0")
		c.same(gadgets+"?fieldSelector=spec.color%3Dred", "g0", "g2")
		c.same(gadgets+"?q=GRE", "g3")
		c.same(gadgets+"?q=9.5", "g0") // of a printed column
		c.same(gadgets+"?sortBy=column:Odd&ascending=false&limit=1", "g3")
		c.table(gadgets + "?limit=1&columns=true&sortBy=spec.cost&ascending=false")
		_, p := c.query(gadgets + "?limit=1&facets=spec.color")
		if fmt.Sprint(p.counts("spec.color")) != "[red=2 blue=1 green=1]" || p.Items[0]["apiVersion"] != "stable.example.com/"+version ||
			p.Items[0]["kind"] != "Gadget" {
			t.Errorf("%s: %+v", version, p)
		}
		c.refused(http.StatusBadRequest, gadgets+"?sortBy=metadata.creationTimestamp", "spec.cost, spec.since, spec.ready, spec.color")
	}
	c.refused(http.StatusBadRequest, gadgets+"?columns=yes", "columns")
	c.refused(http.StatusBadRequest, gadgets+"?labels=x", "unknown parameter or field")
	// The server in front of their storage has no columns of definitions: it asks for the list as a table.
	definitions := "/query/apiextensions.k8s.io/v1/customresourcedefinitions"
	c.same(definitions+"?sortBy=column:Created+At", "gadgets.stable.example.com")
	c.refused(http.StatusBadRequest, definitions+"?sortBy=column:Nothing", "no column")
	s := c.tail(gadgets + "?watch=true&spec.color=red")
	s.want("ADDED g0", "ADDED g2", "BOOKMARK <nil>")
	c.must(http.MethodDelete, "/apis/stable.example.com/v1/namespaces/default/gadgets/g2", nil)
	s.want("DELETED g2")
	c.same("/query/apiextensions.k8s.io/v1/customresourcedefinitions?sortBy=name&ascending=false", "gadgets.stable.example.com")

	// Their queries are in OpenAPI v3, as long as there is a definition.
	described := func() (*spec3.OpenAPI, bool) {
		t.Helper()
		var index struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		if err := json.Unmarshal(c.must(http.MethodGet, "/openapi/v3", nil), &index); err != nil {
			t.Fatal(err)
		}
		document := &spec3.OpenAPI{}
		at, ok := index.Paths["query/stable.example.com/v2"]
		if ok {
			if err := json.Unmarshal(c.must(http.MethodGet, at.ServerRelativeURL, nil), document); err != nil {
				t.Fatal(err)
			}
		}
		return document, ok
	}
	document, ok := described()
	if !ok || document.Paths.Paths["/query/stable.example.com/v2/namespaces/{namespace}/gadgets"] == nil {
		t.Fatalf("the queries of gadgets are not described: %+v", document)
	}
	get := document.Paths.Paths["/query/stable.example.com/v2/gadgets"].Get
	item := get.Responses.StatusCodeResponses[200].Content["application/json"].Schema.Properties["items"].Items.Schema.Ref.String()
	if s := document.Components.Schemas[strings.TrimPrefix(item, "#/components/schemas/")]; s == nil ||
		s.Properties["spec"].Properties["cost"].Type[0] != "number" {
		t.Errorf("items are %s, which is %+v", item, s)
	}
	if !slices.ContainsFunc(get.Parameters, func(p *spec3.Parameter) bool { return p.Name == "spec.cost[gte]" }) {
		t.Errorf("the parameters are %+v", get.Parameters)
	}

	// A changed definition has other fields; a deleted one has none.
	c.must(http.MethodDelete, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets.stable.example.com", nil)
	testwait.Until(t, "gadgets are gone", func() bool {
		code, _ := c.query(gadgets)
		return code == http.StatusNotFound
	})
	if _, ok := described(); ok {
		t.Error("queries of gadgets are described that are gone")
	}
}

// table checks the columns and the row of the gadget g1.
func (c *client) table(path string) {
	c.t.Helper()
	var answer struct {
		Columns []struct{ Name, Type, SortBy string }
		Rows    [][]any
	}
	if err := json.Unmarshal(c.must(http.MethodGet, path, nil), &answer); err != nil {
		c.t.Fatal(err)
	}
	want := "[{Name string name} {Cost number spec.cost} {Since date spec.since} {Ready boolean spec.ready} {Odd string column:Odd} " +
		"{Age date creationTimestamp}]"
	if got := fmt.Sprint(answer.Columns); !strings.HasPrefix(want, got[:len("[{Name string name} {Cost number spec.cost}")]) ||
		len(answer.Rows) != 1 || len(answer.Rows[0]) != len(answer.Columns) || fmt.Sprint(answer.Rows[0][:2]) != "[g1 10]" {
		c.t.Errorf("%s: columns %s, rows %v, want columns %s", path, got, answer.Rows, want)
	}
}
