package queries

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"testing"

	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex"
)

func TestOpenAPI_queries(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(c.must(http.MethodGet, "/openapi/v3", nil), &index); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1", "v1beta1"} {
		at := index.Paths["query/shop.example.com/"+version].ServerRelativeURL
		document := &spec3.OpenAPI{}
		if err := json.Unmarshal(c.must(http.MethodGet, at, nil), document); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"widgets", "namespaces/{namespace}/widgets", "shelves"} {
			described := document.Paths.Paths["/query/shop.example.com/"+version+"/"+path]
			if version == "v1beta1" && path == "shelves" {
				continue
			}
			if described == nil || described.Get == nil {
				t.Fatalf("%s of %s is not described", path, version)
			}
			answer := described.Get.Responses.StatusCodeResponses[200].Content["application/json"].Schema
			ref := answer.Properties["items"].Items.Schema.Ref
			name := ref.String()[len("#/components/schemas/"):]
			schema := document.Components.Schemas[name]
			if schema == nil ||
				schema.Properties["spec"].Description == "" && len(schema.Properties["spec"].AllOf) == 0 &&
					schema.Properties["metadata"].Description == "" &&
					len(schema.Properties) < 3 {
				t.Errorf("%s of %s: items are %s, which is %v", path, version, name, schema)
			}
			var names []string
			for _, p := range described.Get.Parameters {
				names = append(names, p.Name)
			}
			if !slices.Contains(names, "sortBy") || !slices.Contains(names, "creationTimestamp[gte]") ||
				path != "shelves" && !slices.Contains(names, "spec.replicas[lt]") {
				t.Errorf("%s of %s has the parameters %q", path, version, names)
			}
		}
	}
}

// All documents are made of the same definitions, each when it is first requested.
func TestOpenAPI_concurrentRequests(t *testing.T) {
	t.Parallel()
	for range 4 {
		c := start(t, shop(), annex.Options{})
		var asked sync.WaitGroup
		for _, path := range []string{"v2", "v3", "v3/apis/shop.example.com/v1", "v3/apis/shop.example.com/v1beta1",
			"v3/query/shop.example.com/v1", "v3/query/shop.example.com/v1beta1", "v3/version"} {
			asked.Go(func() {
				status, body := c.do(http.MethodGet, "/openapi/"+path, nil)
				if status != http.StatusOK || !json.Valid(body) {
					t.Errorf("%s: %d %.200s", path, status, body)
				}
			})
		}
		asked.Wait()
	}
}
