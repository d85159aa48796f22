package cluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

const (
	alphaFlunder = `apiVersion: wardle.example.com/v1alpha1
kind: Flunder
metadata:
  name: %s
  labels: {sample: "true"}
spec:
  reference: other
`
	betaFlunder = `apiVersion: wardle.example.com/v1beta1
kind: Flunder
metadata:
  name: %s
spec:
  referenceType: Fischer
  fischerReference: fish
`
)

// namespace creates a namespace, which is deleted after the test.
func namespace(t *testing.T) string {
	t.Helper()
	name := "test-" + rand.String(8)
	admin := newKubectl(t, host.Admin())
	admin.must("create", "namespace", name)
	t.Cleanup(func() {
		out, err := admin.command(context.Background(), "", "delete", "namespace", name, "--wait=false", "--ignore-not-found").CombinedOutput()
		if err != nil {
			t.Errorf("delete namespace %s: %v\n%s", name, err, out)
		}
	})
	return name
}

// user returns a client with a certificate of the cluster for this name.
func user(t *testing.T, name string, groups ...string) *rest.Config {
	t.Helper()
	config, err := host.User(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func everyVerb(t *testing.T, w *wardle) {
	ns := namespace(t)
	k := newKubectl(t, host.Admin())
	in := func(args ...string) []string { return append([]string{"-n", ns}, args...) }

	k.prints("flunders", "api-resources", "--api-group", group)
	k.prints("flunder.wardle.example.com/a created", in("-f", k.file("a.yaml", fmt.Sprintf(alphaFlunder, "a")), "create")...)
	k.prints("flunder.wardle.example.com/b created", in("-f", k.file("b.yaml", fmt.Sprintf(betaFlunder, "b")), "create")...)
	k.refused("", "AlreadyExists", in("create", "-f", k.path("a.yaml"))...)
	k.prints("referenceType: Flunder", in("get", "flunders.v1alpha1.wardle.example.com", "a", "-o", "yaml")...)
	k.prints("flunderReference: other", in("get", "flunders.v1beta1.wardle.example.com", "a", "-o", "yaml")...)
	k.prints("reference: fish", in("get", "flunders.v1alpha1.wardle.example.com", "b", "-o", "yaml")...)
	k.refused("", `"missing" not found`, in("get", "flunders", "missing")...)
	if out := k.must(in("get", "flunders", "-o", "name")...); strings.Count(out, "\n") != 2 {
		t.Errorf("list:\n%s", out)
	}
	if out := k.must(in("get", "flunders", "-l", "sample=true", "-o", "name")...); out != "flunder.wardle.example.com/a\n" {
		t.Errorf("list with a selector:\n%s", out)
	}
	k.prints("Kind:         Flunder", in("describe", "flunder", "a")...)
	k.prints("labeled", in("label", "flunder", "a", "size=small")...)
	k.prints("annotated", in("annotate", "flunder", "a", "note=written")...)
	for _, p := range []struct{ kind, patch, want string }{
		{"merge", `{"metadata":{"labels":{"size":"large"}}}`, "large"},
		{"json", `[{"op":"replace","path":"/metadata/labels/size","value":"huge"}]`, "huge"},
		{"strategic", `{"metadata":{"labels":{"size":"tiny"}}}`, "tiny"},
	} {
		k.prints("patched", in("patch", "flunder", "a", "--type", p.kind, "-p", p.patch)...)
		k.prints(p.want, in("get", "flunder", "a", "-o", "jsonpath={.metadata.labels.size}")...)
	}
	k.given(k.must(in("get", "flunder", "a", "-o", "yaml")...), in("replace", "-f", "-")...)
	k.refused(
		fmt.Sprintf(strings.Replace(alphaFlunder, "reference: other", "refrence: other", 1), "typo"),
		`unknown field "spec.refrence"`,
		in("create", "-f", "-")...)
	k.refused(
		fmt.Sprintf(strings.Replace(betaFlunder, "fischerReference: fish", "flunderReference: fish", 1), "wrong"),
		"is invalid",
		in("create", "-f", "-")...)
	k.prints("condition met", in("wait", "flunder", "a", "--for=jsonpath={.metadata.labels.size}=tiny", "--timeout=60s")...)
	k.prints("created (server dry run)", in("create", "-f", k.file("dry.yaml", fmt.Sprintf(alphaFlunder, "dry")), "--dry-run=server")...)
	k.refused("", `"dry" not found`, in("get", "flunder", "dry")...)
	k.prints("deleted", in("delete", "flunder", "b")...)
	k.prints("deleted", in("delete", "flunders", "--all")...)
	k.prints("No resources found", in("get", "flunders")...)

	fischer := "apiVersion: wardle.example.com/v1alpha1\nkind: Fischer\nmetadata: {name: %s}\ndisallowedFlunders: [banned-%[1]s]\n"
	k.given(fmt.Sprintf(fischer, ns), "create", "-f", "-")
	t.Cleanup(func() { _, _ = k.command(context.Background(), "", "delete", "fischer", ns).CombinedOutput() })
	testwait.NoError(t, "the server has seen the fischer", func(context.Context) error {
		out, err := k.run(fmt.Sprintf(alphaFlunder, "banned-"+ns), in("create", "-f", "-", "--dry-run=server")...)
		if err == nil || !strings.Contains(out, "may not be used") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
}

func rolesGive(t *testing.T, w *wardle) {
	ns, other := namespace(t), namespace(t)
	name := "user-" + ns
	admin := newKubectl(t, host.Admin())
	admin.must("create", "role", "flunders", "-n", ns, "--verb=get,list,watch,create", "--resource=flunders.wardle.example.com")
	admin.must("create", "rolebinding", "flunders", "-n", ns, "--role=flunders", "--group=writers-"+ns)
	for _, who := range []struct {
		name string
		k    *kubectl
	}{
		{"through the cluster", newKubectl(t, user(t, name, "writers-"+ns))},
		{"directly", newKubectl(t, w.direct(user(t, name, "writers-"+ns)))},
	} {
		t.Run(who.name, func(t *testing.T) {
			k := who.k
			testwait.NoError(t, "the role applies", func(context.Context) error {
				out, err := k.run("", "-n", ns, "get", "flunders")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
			flunder := "f-" + rand.String(5)
			k.given(fmt.Sprintf(alphaFlunder, flunder), "-n", ns, "create", "-f", "-")
			k.prints(flunder, "-n", ns, "get", "flunders")
			cannot := func(verb string) string {
				return fmt.Sprintf(`User "%s" cannot %s resource "flunders" in API group "wardle.example.com"`, name, verb)
			}
			k.refused("", cannot("delete"), "-n", ns, "delete", "flunder", flunder)
			k.refused("", cannot("patch"), "-n", ns, "label", "flunder", flunder, "a=b")
			k.refused("", cannot("list"), "-n", other, "get", "flunders")
			k.refused("", cannot("list"), "get", "flunders", "-A")
		})
	}
}

func nobodyIsRefused(t *testing.T, w *wardle) {
	ns := namespace(t)
	admin := newKubectl(t, host.Admin())
	admin.given(fmt.Sprintf(alphaFlunder, "a"), "-n", ns, "create", "-f", "-")
	nobody := newKubectl(t, user(t, "nobody"))
	for verb, args := range map[string][]string{
		"list": {"get", "flunders"}, "get": {"get", "flunder", "a"}, "delete": {"delete", "flunder", "a"},
		"patch": {"patch", "flunder", "a", "-p", "{}"}, "deletecollection": {"delete", "--raw", "/apis/" + group + "/v1alpha1/namespaces/" +
			ns + "/flunders"},
		"create": {"create", "-f", nobody.file("b.yaml", fmt.Sprintf(alphaFlunder, "b"))},
		"watch":  {"get", "--raw", "/apis/" + group + "/v1alpha1/namespaces/" + ns + "/flunders?watch=1"},
	} {
		if verb == "patch" {
			nobody.refused("", `User "nobody" cannot get resource`, append(args, "-n", ns)...) // kubectl reads first
			continue
		}
		if strings.HasPrefix(args[1], "--raw") {
			nobody.refused("", fmt.Sprintf(`User "nobody" cannot %s resource "flunders"`, verb), args...)
			continue
		}
		nobody.refused("", fmt.Sprintf(`User "nobody" cannot %s resource "flunders"`, verb), append(args, "-n", ns)...)
	}
	admin.prints("Flunder", "-n", ns, "get", "flunder", "a", "-o", "yaml")

	anonymous := host.Admin()
	anonymous.CertData, anonymous.KeyData = nil, nil
	for _, config := range []*rest.Config{anonymous, w.direct(anonymous)} {
		if status, body := get(
			t,
			config,
			"/apis/"+group+"/v1alpha1/flunders",
			nil,
		); status != http.StatusForbidden ||
			!strings.Contains(body, `\"system:anonymous\" cannot list`) {
			t.Errorf("%s, anonymously: %d %s", config.Host, status, body)
		}
	}
}

// get returns the status and the body of a response.
func get(t *testing.T, config *rest.Config, path string, header http.Header) (int, string) {
	t.Helper()
	response := do(t, config, path, header)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func do(t *testing.T, config *rest.Config, path string, header http.Header) *http.Response {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ending(t), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(request.Header, header)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}
