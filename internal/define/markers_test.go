package define

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/api"
)

type parcel struct {
	Status struct {
		Phase string `json:"phase,omitempty"`
	} `json:"status,omitempty"`
}

// parcels is a kind with the Go type above, whose package has markers that say of
// subresources what the version's definition does.
func parcels(status bool, subresources ...string) *Kind {
	k := &Kind{Resource: "parcels", Status: status, WithoutStatus: !status}
	for i, said := range subresources {
		gv := schema.GroupVersion{Group: "post.example.com", Version: fmt.Sprintf("v%d", i+1)}
		definition := fmt.Sprintf(`{"spec": {"group": %q, "scope": "Namespaced", "names": {"plural": "parcels", "kind": "parcel"},
			"versions": [{"name": %q, "served": true, "schema": {"openAPIV3Schema": {"type": "object"}}%s}]}}`, gv.Group, gv.Version, said)
		k.Versions = append(k.Versions, &Version{Type: reflect.TypeFor[parcel](), Facts: func() api.Facts {
			return api.Facts{GroupVersion: gv, CustomResources: func() map[string]string { return map[string]string{"parcel": definition} }}
		}})
	}
	return k
}

func TestMarkersDecideAboutStatusOnlyWhereTheySpeakOfSubresources(t *testing.T) {
	const (
		nothing = ``
		none    = `, "subresources": {}`
		status  = `, "subresources": {"status": {}}`
	)
	for name, test := range map[string]struct {
		kind   *Kind
		served bool
		errors int
	}{
		"markers of fields alone":              {parcels(true, nothing), true, 0},
		"WithoutStatus in Go":                  {parcels(false, nothing), false, 0},
		"a kind of controller-gen without":     {parcels(true, none), false, 0},
		"a kind of controller-gen with":        {parcels(true, status), true, 0},
		"WithoutStatus, and markers say so":    {parcels(false, status), true, 1},
		"an older version says nothing":        {parcels(true, none, nothing), false, 0},
		"an older version says nothing either": {parcels(true, nothing, nothing), true, 0},
		"an older version says otherwise":      {parcels(true, status, none), true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var c checker
			c.markers("parcels", test.kind)
			if test.kind.Status != test.served || len(c.errs) != test.errors {
				t.Errorf("/status served: %v, errors %v; want %v and %d errors", test.kind.Status, c.errs, test.served, test.errors)
			}
			for i, v := range test.kind.Versions {
				if test.errors == 0 && v.Structural.HasStatus() != test.served {
					t.Errorf("version %d is validated as if /status were served: %v", i, !test.served)
				}
			}
		})
	}
}

// A marker of a field puts a whole package under the markers' rules, whose kinds may be cluster-scoped.
func TestClusterScoped_markersOfFieldsAlone(t *testing.T) {
	for name, test := range map[string]struct {
		scope, resource string
		cluster         bool
		errors          int
	}{
		"not marked, in namespaces":     {"", "parcels", false, 0},
		"not marked, cluster-scoped":    {"", "parcels", true, 0},
		"not marked, another resource":  {"", "post", true, 0},
		"marked otherwise":              {"Namespaced", "parcels", true, 1},
		"marked with another resource":  {"Cluster", "post", true, 1},
		"marked, and declared likewise": {"Cluster", "parcels", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := parcels(true, ``)
			k.Resource, k.ClusterScoped = test.resource, test.cluster
			facts := k.Versions[0].Facts()
			definition := strings.Replace(facts.CustomResources()["parcel"], `"Namespaced"`, strconv.Quote(test.scope), 1)
			k.Versions[0].Facts = func() api.Facts {
				definitions := map[string]string{"parcel": definition}
				return api.Facts{GroupVersion: facts.GroupVersion, CustomResources: func() map[string]string { return definitions }}
			}
			var c checker
			c.markers("parcels", k)
			if len(c.errs) != test.errors {
				t.Errorf("errors %v, want %d", c.errs, test.errors)
			}
			if test.errors == 0 && (k.ClusterScoped != test.cluster || k.Versions[0].Structural.Namespaced() == test.cluster) {
				t.Errorf("cluster-scoped %v, want %v, of the rules too", k.ClusterScoped, test.cluster)
			}
		})
	}
}
