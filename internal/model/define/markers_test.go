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

// parcels returns a kind with the Go type above. Each of subresources is the subresources entry in the definition of
// a version.
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

func TestMarkers_status(t *testing.T) {
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

// A marker on a field makes the rules of markers apply to the whole package, whose kinds may be cluster-scoped.
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

// A cluster also serves /status of a definition whose schema has no status.
func TestStatusField_absent(t *testing.T) {
	type bare struct{}
	type misnamed struct {
		Status struct{} `json:"state"`
	}
	type other struct {
		State string `json:"status"`
	}
	for name, test := range map[string]struct {
		goType       reflect.Type
		subresources string
		errors       int
	}{
		"a marker asks for /status":    {reflect.TypeFor[bare](), `, "subresources": {"status": {}}`, 0},
		"no marker does":               {reflect.TypeFor[bare](), `, "subresources": {}`, 1},
		"the field has another name":   {reflect.TypeFor[misnamed](), `, "subresources": {"status": {}}`, 1},
		"another field has its name":   {reflect.TypeFor[other](), `, "subresources": {"status": {}}`, 1},
		"a field of the name is there": {reflect.TypeFor[parcel](), `, "subresources": {"status": {}}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := parcels(true, test.subresources)
			var c checker
			c.markers("parcels", k)
			k.Status, k.Versions[0].Type = true, test.goType
			if c.paths("parcels", k); len(c.errs) != test.errors {
				t.Errorf("errors %v, want %d", c.errs, test.errors)
			}
		})
	}
}

func TestScalePath_integers(t *testing.T) {
	type sizes struct {
		Spec struct {
			Small int32  `json:"small"`
			Large *int64 `json:"large"`
			Tiny  int16  `json:"tiny"`
			Text  string `json:"text"`
		} `json:"spec"`
	}
	k := &Kind{Versions: []*Version{{Type: reflect.TypeFor[sizes]()}}}
	for field, errors := range map[string]int{"small": 0, "large": 0, "tiny": 1, "text": 1} {
		var c checker
		c.scalePath("sizes", k, "SpecReplicas", []string{"spec", field}, "spec", reflect.Int32, reflect.Int64)
		if len(c.errs) != errors {
			t.Errorf("%s: errors %v, want %d", field, c.errs, errors)
		}
	}
}
