package fastpath

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestPath_unusualSpelling_isDeclined(t *testing.T) {
	apps, core := schema.GroupVersion{Group: "apps", Version: "v1"}, schema.GroupVersion{Version: "v1"}
	for _, c := range []struct {
		path                      Path
		spelled, namespace, named string
		resource                  string
		want                      bool
	}{
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments", "default", "", "deployments", true},
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments/d", "default", "d", "deployments", true},
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments/d/", "default", "d", "deployments", false},
		{PathOf(apps, true), "/apis/apps//v1/namespaces/default/deployments", "default", "", "deployments", false},
		{PathOf(apps, true), "/apis/apps/v1/deployments", "", "", "deployments", false},
		{PathOf(apps, true), "/apis/apps/v2/namespaces/default/deployments", "default", "", "deployments", false},
		{PathOf(core, false), "/api/v1/nodes/n", "", "n", "nodes", true},
		{PathOf(core, false), "/api/v1/namespaces/default/nodes/n", "default", "n", "nodes", false},
	} {
		info := &request.RequestInfo{Path: c.spelled, Namespace: c.namespace, Resource: c.resource, Name: c.named}
		if got := c.path.Matches(info); got != c.want {
			t.Errorf("%s: %v, want %v", c.spelled, got, c.want)
		}
	}
}

func TestScope_unusualSpelling_isDeclined(t *testing.T) {
	apps, core := schema.GroupVersion{Group: "apps", Version: "v1"}, schema.GroupVersion{Version: "v1"}
	for _, c := range []struct {
		path                             Path
		spelled, namespace, name, plural string
		want                             string
	}{
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments", "default", "", "deployments", "namespace"},
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments", "default", "selected", "deployments", "namespace"},
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments/", "default", "", "deployments", ""},
		{PathOf(apps, true), "/apis/apps/v1/namespaces/default/deployments/d", "default", "d", "deployments", ""},
		{PathOf(apps, true), "/apis/apps/v1/watch/namespaces/default/deployments", "default", "", "deployments", ""},
		{PathOf(apps, true), "/apis/apps/v1/deployments", "", "", "deployments", "cluster"},
		{PathOf(apps, true), "/apis/apps/v1/watch/deployments", "", "", "deployments", ""},
		{PathOf(apps, true), "/apis/apps/v2/deployments", "", "", "deployments", ""},
		{PathOf(core, false), "/api/v1/nodes", "", "", "nodes", "cluster"},
		{PathOf(core, false), "/api/v1/nodes", "", "selected", "nodes", "cluster"},
		{PathOf(core, false), "/api/v1/watch/nodes", "", "", "nodes", ""},
		{PathOf(core, false), "/api/v1/namespaces/default/nodes", "default", "", "nodes", ""},
	} {
		info := &request.RequestInfo{Path: c.spelled, Namespace: c.namespace, Resource: c.plural, Name: c.name}
		if got := c.path.Scope(info); got != c.want {
			t.Errorf("%s of %q: %q, want %q", c.spelled, c.name, got, c.want)
		}
	}
}
