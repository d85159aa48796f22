package builtin

import (
	"net/http"
	"testing"
)

// A kube-apiserver itself sets the conditions of APIServices, so the requests are dry runs.
func TestAPIServices_rejections(t *testing.T) {
	b := &both{t: t, theirs: connect(t, host.Admin()), ours: connect(t, start(t))}
	spec := func(changes map[string]any) map[string]any {
		all := map[string]any{"group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10}
		for key, value := range changes {
			all[key] = value
		}
		return all
	}
	service := map[string]any{"namespace": "default", "name": "shop"}
	for what, test := range map[string]struct {
		name string
		spec map[string]any
		code int
	}{
		"remote": {"v1.example.com", spec(map[string]any{"service": service, "caBundle": "YWJj"}), http.StatusCreated},
		"not verified": {"v1.example.com", spec(map[string]any{"service": service, "insecureSkipTLSVerify": true}),
			http.StatusCreated},
		"another name":           {"v2.example.com", spec(nil), http.StatusUnprocessableEntity},
		"a name that is no path": {"v1/example.com", spec(nil), http.StatusUnprocessableEntity},
		"verified and not": {"v1.example.com",
			spec(map[string]any{"service": service, "caBundle": "YWJj", "insecureSkipTLSVerify": true}), http.StatusUnprocessableEntity},
		"local, with a bundle": {"v1.example.com", spec(map[string]any{"caBundle": "YWJj", "insecureSkipTLSVerify": true}),
			http.StatusUnprocessableEntity},
		"a service of no name": {"v1.example.com", spec(map[string]any{"service": map[string]any{}}), http.StatusUnprocessableEntity},
		"a port that is none": {"v1.example.com",
			spec(map[string]any{"service": map[string]any{"namespace": "a", "name": "b", "port": 70000}}), http.StatusUnprocessableEntity},
		"no priorities": {"v1.example.com", spec(map[string]any{"groupPriorityMinimum": 0, "versionPriority": 0}),
			http.StatusUnprocessableEntity},
		"too high priorities": {"v1.example.com", spec(map[string]any{"groupPriorityMinimum": 20001, "versionPriority": 1001}),
			http.StatusUnprocessableEntity},
		"the core group's v2":      {"v2.", spec(map[string]any{"group": "", "version": "v2"}), http.StatusUnprocessableEntity},
		"a group that is no name":  {"v1.Example", spec(map[string]any{"group": "Example"}), http.StatusUnprocessableEntity},
		"a version that is none":   {"1.example.com", spec(map[string]any{"version": "1"}), http.StatusUnprocessableEntity},
		"an unknown field of spec": {"v1.example.com", spec(map[string]any{"url": "https://localhost"}), http.StatusCreated},
	} {
		object := map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1",
			"kind":       "APIService",
			"metadata":   map[string]any{"name": test.name},
			"spec":       test.spec,
		}
		if code, _ := b.same(
			what,
			http.MethodPost,
			"/apis/apiregistration.k8s.io/v1/apiservices?dryRun=All&fieldManager=test",
			asJSON,
			object,
		); code != test.code {
			t.Errorf("%s: %d", what, code)
		}
	}
}
