package define

import (
	"fmt"
	"reflect"
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
