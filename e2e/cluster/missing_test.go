package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// A server without any permissions names the missing ones, and becomes ready, without a restart, by the bindings from
// its verb manifests, one after another.
func TestMissingBindings_areNamed(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	admin.must("create", "namespace", "bare")
	how := bindings(t)
	t.Cleanup(func() {
		for _, args := range [][]string{{"delete", "namespace", "bare", "--wait=false"}, {"delete", "--ignore-not-found", "-f", "-"}} {
			if out, err := admin.command(context.WithoutCancel(t.Context()), strings.Join(how, "---\n"), args...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
	admin.must("create", "serviceaccount", "wardle", "-n", "bare")
	account, err := host.ServiceAccount(ending(t), "bare", "wardle")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(run, "bare.kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, account); err != nil {
		t.Fatal(err)
	}
	bearer, err := host.ServiceAccount(ending(t), "bare", "wardle")
	if err != nil {
		t.Fatal(err)
	}
	w := &wardle{name: "bare"}
	if w.serving, err = kube.NewAuthority("bare"); err != nil {
		t.Fatal(err)
	}
	pair, err := w.serving.Server("localhost", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(run, "bare")
	if err != nil {
		t.Fatal(err)
	}
	w.Process, err = kube.Run(ending(t), run, kube.Program{
		Name: "bare", Path: filepath.Join(bin, "wardle"), Ports: 1,
		Args: func(ports []int) []string {
			return []string{
				"serve",
				"--aggregated",
				"--kubeconfig",
				kubeconfig,
				"--storage",
				"memory",
				"--data-dir",
				filepath.Join(run, "bare-data"),
				"--secure-port",
				fmt.Sprint(ports[0]),
				"--tls-cert-file",
				cert,
				"--tls-private-key-file",
				key,
			}
		},
		Ready: func(ctx context.Context, ports []int) error {
			if code, _ := ask(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/livez", ports[0]), "", ""); code == http.StatusOK {
				return nil
			}
			return fmt.Errorf("not alive")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	url := fmt.Sprintf("https://127.0.0.1:%d", w.Port(0))
	says := func(code int, texts ...string) {
		t.Helper()
		testwait.NoError(t, "/readyz says "+strings.Join(texts, ", "), func(ctx context.Context) error {
			got, body := ask(ctx, http.MethodGet, url+"/readyz", "", "")
			for _, text := range texts {
				if !strings.Contains(body, text) {
					return fmt.Errorf("%d %s", got, body)
				}
			}
			if got != code {
				return fmt.Errorf("%d %s", got, body)
			}
			return nil
		})
	}
	const policies = "list and watch on mutatingadmissionpolicies.admissionregistration.k8s.io"
	const sorry = "; `wardle manifests` prints the required bindings"
	says(http.StatusInternalServerError, "a binding to the role extension-apiserver-authentication-reader in kube-system and to the "+
		"ClusterRole system:auth-delegator",
		"get, list and watch on namespaces", policies, sorry)

	delegator, reader, rules := how[1], how[0], how[2]+"\n---\n"+how[3]
	flunder := `{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":"f"}}`
	flunders := url + "/apis/wardle.example.com/v1alpha1/namespaces/bare/flunders"

	// With authentication and authorization, it can permit reads, but not yet writes.
	admin.given(delegator, "apply", "-f", "-")
	says(http.StatusInternalServerError, "missing: a binding to the role extension-apiserver-authentication-reader in kube-system, get, "+
		"list and watch on namespaces", policies)
	admin.given(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: flunders, namespace: bare}
rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: ["*"]}]
`, "apply", "-f", "-")
	admin.must("create", "rolebinding", "flunders", "-n", "bare", "--role=flunders", "--serviceaccount=bare:wardle")
	testwait.NoError(t, "it may be read", func(ctx context.Context) error {
		if code, body := ask(ctx, http.MethodGet, flunders, bearer.BearerToken, ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, body := ask(
		t.Context(),
		http.MethodPost,
		flunders,
		bearer.BearerToken,
		flunder,
	); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, policies) {
		t.Errorf("write: %d %s", code, body)
	}

	admin.given(reader, "apply", "-f", "-")
	says(http.StatusInternalServerError, "missing: get, list and watch on namespaces, "+policies)
	admin.given(rules, "apply", "-f", "-")
	says(http.StatusOK, "ok")
	if code, body := ask(t.Context(), http.MethodPost, flunders, bearer.BearerToken, flunder); code != http.StatusCreated {
		t.Errorf("write: %d %s", code, body)
	}

	log, err := os.ReadFile(w.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "Not ready: the server cannot read everything that it requires from the cluster"); n > 4 {
		t.Errorf("%d lines about four states:\n%s", n, log)
	}
}

// bindings returns the manifests of the server that concern its cluster: the bindings of the reader and of the
// delegator, and the role for reading with its binding.
func bindings(t *testing.T) []string {
	t.Helper()
	var all []string
	manifests := runs(
		t,
		filepath.Join(bin, "wardle"),
		"manifests",
		"--image",
		"registry.example.com/wardle:v1",
		"--namespace",
		"bare",
		"--certificates",
		"secret=tls",
	)
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(object.Name, "wardle.bare:") {
			all = append(all, document+"\n")
		}
	}
	if len(all) != 4 {
		t.Fatalf("%d bindings and roles:\n%s", len(all), manifests)
	}
	return all
}

// ask sends a request to a server without verifying its certificate, and without a client library, which would wait
// for a server that is not ready.
func ask(ctx context.Context, method, url, token, body string) (code int, text string) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(data)
}
