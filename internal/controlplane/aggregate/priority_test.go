package aggregate

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOwnServices_priorities(t *testing.T) {
	t.Parallel()
	want := map[string]priority{
		"v1.":                             {18000, 1},
		"v1.flowcontrol.apiserver.k8s.io": {16100, 21},
		"v1.coordination.k8s.io":          {16500, 15},
		"v1beta1.coordination.k8s.io":     {16500, 13},
		"v2.autoscaling":                  {17500, 30},
		"v1.autoscaling":                  {17500, 15},
		"v1beta1.shop.example.com":        {2000, 100},
		"v1alpha1.shop.example.com":       {2000, 99},
	}
	services := ownServices([]schema.GroupVersion{
		{Version: "v1"}, {Group: "flowcontrol.apiserver.k8s.io", Version: "v1"},
		{Group: "coordination.k8s.io", Version: "v1"}, {Group: "coordination.k8s.io", Version: "v1beta1"},
		{Group: "autoscaling", Version: "v2"}, {Group: "autoscaling", Version: "v1"},
		{Group: "shop.example.com", Version: "v1beta1"}, {Group: "shop.example.com", Version: "v1alpha1"},
	})
	if len(services) != len(want) {
		t.Errorf("%d APIServices", len(services))
	}
	for _, s := range services {
		if got := (priority{s.Spec.GroupPriorityMinimum, s.Spec.VersionPriority}); got != want[s.Name] {
			t.Errorf("%s: %v, want %v", s.Name, got, want[s.Name])
		}
	}
}
