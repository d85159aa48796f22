package fastpath

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// FuzzPath knows the paths of resources and objects, and only these, of all that upstream takes for requests of them.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"/apis/apps/v1/namespaces/default/deployments", "/apis/apps/v1/namespaces/default/deployments/d",
		"/apis/apps/v1/namespaces/default/deployments/d/", "/apis/apps/v1/deployments", "/apis/apps/v1/deployments/d",
		"/apis/apps//v1/namespaces/default/deployments", "/apis/apps/v1/namespaces/default/deployments/d/status",
		"/apis/apps/v1/watch/namespaces/default/deployments/d", "/api/v1/namespaces/default", "/api/v1/namespaces", "/api/v1/nodes/n",
		"/api/v1/namespaces/default/status", "/api/v1/namespaces/a/finalize", "/api/v1/proxy/nodes/n",
		"/apis/apps/v1/namespaces/namespaces/namespaces/namespaces", "apis/apps/v1/deployments/d",
		"/apis/apps/v1/namespaces/default/deployments/.", "//apis/apps/v1/deployments",
		"/apis/apps/v1/watch/deployments", "/apis/apps/v1/proxy/deployments/d", "/", "", "/apis/apps/v1/namespaces//deployments/d",
		"/apis/apps/v1//namespaces/d/deployments",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "PATCH", "PUT"} {
			f.Add(method, path)
		}
	}
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	f.Fuzz(func(t *testing.T, method, path string) {
		info, err := resolver.NewRequestInfo(&http.Request{Method: method, URL: &url.URL{Path: path}})
		if err != nil || !info.IsResourceRequest || info.Subresource != "" || info.Verb == "watch" || info.Verb == "proxy" {
			return
		}
		for _, namespaced := range []bool{false, true} {
			gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			spelled := []string{"", info.APIPrefix}
			if gv.Group != "" {
				spelled = append(spelled, gv.Group)
			}
			spelled = append(spelled, gv.Version)
			if namespaced {
				spelled = append(spelled, "namespaces", info.Namespace)
			}
			spelled = append(spelled, info.Resource)
			if info.Name != "" {
				spelled = append(spelled, info.Name)
			}
			want := strings.Join(spelled, "/") == path && namespaced == (info.Namespace != "") && (info.APIPrefix == "api") == (gv.Group == "")
			if got := PathOf(gv, namespaced).Matches(info); got != want {
				t.Errorf("%s %q, namespaced %t, as %+v: %t, want %t", method, path, namespaced, info, got, want)
			}
		}
	})
}
