package controlplane

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// A kube-apiserver stores these kinds as protobuf, which has no empty lists.
func TestStoredForm_kubernetesKinds(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]annex.Options{
		"memory": {Storage: memory.Storage()},
		"files":  {Storage: files.Dir(t.TempDir())},
	} {
		t.Run(name, func(t *testing.T) {
			client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), options)).RESTClient()
			const roles, limits = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", "/api/v1/namespaces/default/limitranges"
			role := func(more string) string {
				return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"a"` + more + `},"rules":[]}`
			}
			const limitRange = `{"apiVersion":"v1","kind":"LimitRange","metadata":{"name":"a"},"spec":{"limits":[]}}`
			for _, step := range []struct{ verb, path, contentType, body, want string }{
				{http.MethodPost, roles + "?dryRun=All", "application/json", role(""), `"rules":null`},
				{http.MethodPost, roles, "application/json", role(""), `"rules":null`},
				{http.MethodGet, roles + "/a", "", "", `"rules":null`},
				{http.MethodPatch, roles + "/a", "application/merge-patch+json", `{"rules":[{"verbs":["get"],` +
					`"apiGroups":[""],"resources":["pods"],"resourceNames":[]}]}`, `"resources":["pods"]}]`},
				{http.MethodPut, roles + "/a?dryRun=All", "application/json", role(""), `"rules":null`},
				{http.MethodPut, roles + "/a", "application/json", role(`,"labels":{"a":"b"}`), `"rules":null`},
				{http.MethodPatch, roles + "/b?fieldManager=test", "application/apply-patch+yaml", strings.Replace(role(""), `"a"`, `"b"`, 1),
					`"rules":null`},
				{http.MethodGet, roles, "", "", `"rules":null`},
				{http.MethodPost, limits + "?dryRun=All", "application/json", limitRange, `"limits":null`},
				{http.MethodPost, limits, "application/json", limitRange, `"limits":null`},
				{http.MethodPost, "/api/v1/namespaces/default/secrets", "application/json",
					`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"},"data":{"key":null}}`, `"data":{"key":""}`},
			} {
				if got := raw(
					t,
					client,
					step.verb,
					step.path,
					step.contentType,
					step.body,
				); !strings.Contains(got, step.want) ||
					strings.Contains(got, "[]") {
					t.Errorf("%s %s %s: %s has not %s, or an empty list", step.verb, step.path, step.body, got, step.want)
				}
			}
		})
	}
}

// raw returns the body of a response.
func raw(t *testing.T, client rest.Interface, verb, path, contentType, body string) string {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	request := client.Verb(verb).AbsPath(path)
	if name, value, ok := strings.Cut(query, "="); ok {
		request.Param(name, value)
	}
	if body != "" {
		request.SetHeader("Content-Type", contentType).Body([]byte(body))
	}
	answer, err := request.DoRaw(t.Context())
	if err != nil {
		t.Fatalf("%s %s %s: %v: %s", verb, path, body, err, answer)
	}
	return string(answer)
}
