package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/e2e/cluster/kube"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// The APIService of upstream's manifests is moved from upstream's server to ours and back, while an informer and a
// writer run. Each time the other server is ended, so that no client can still be connected to it.
func TestDropIn_replacement_isSeamless(t *testing.T) {
	etcd := startEtcd(t)
	upstream := startSample(t, "replaced-sample", etcd)
	ours := startAnnex(t, "replaced-annex", etcd)
	k := newKubectl(t, host.Admin())
	if err := host.Register(ending(t), upstream.apiService("v1alpha1", 15)); err != nil { // creates the service
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Unregister(context.Background(), "v1alpha1."+group); err != nil {
			t.Error(err)
		}
	})
	ns := namespace(t)
	stock := filepath.Join(stockManifests(t), "apiservice.yaml")
	lead := func(to *wardle) {
		t.Helper()
		// As an operator would: upstream's file, with the address of our server.
		k.must("replace", "-f", stock)
		k.must("patch", "apiservice", "v1alpha1."+group, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"service":{"port":%d}}}`, to.Port(0)))
		testwait.NoError(t, "the cluster asks "+to.name, func(context.Context) error {
			header := responseHeader(t, "/apis/"+group+"/v1alpha1/namespaces/"+ns+"/flunders")
			if got := header.Get("Warning") != ""; got != to.upstream { // it warns that v1alpha1 is old
				return fmt.Errorf("answered with %v", header)
			}
			return nil
		})
	}

	lead(upstream)
	client := flunders(t, host.Admin(), ns)
	write(t, client, "first", 10)
	f := follow(t, host.Admin(), alphaFlunders, ns)
	for i, way := range []struct{ from, to *wardle }{{upstream, ours}, {ours, upstream}, {upstream, ours}} {
		lead(way.to)
		way.from.Kill()
		write(t, client, fmt.Sprintf("round-%d", i), 10)
		f.catchesUp(t)
		// Objects written by one server are changed by the other.
		if _, err := client.Patch(
			t.Context(),
			"first-0",
			types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"reference":"r-%d"}}`, i),
			metav1.PatchOptions{},
		); err != nil {
			t.Error(err)
		}
		f.catchesUp(t)
		if err := way.from.Start(ending(t)); err != nil {
			t.Fatal(err)
		}
	}
	f.toldOnce(t)
	if failures := f.failures(); len(failures) != 0 {
		t.Errorf("the informer was told %q", failures)
	}
}

func responseHeader(t *testing.T, path string) http.Header {
	t.Helper()
	response := do(t, host.Admin(), path, nil)
	defer response.Body.Close()
	return response.Header
}

// For the same requests the two servers write the same bytes to etcd, apart from names, times and UIDs that differ by
// nature; and each serves the other's objects with the same bytes.
func TestDropIn_objectsInEtcd(t *testing.T) {
	etcd := startEtcd(t)
	servers := []*wardle{startSample(t, "bytes-sample", etcd), startAnnex(t, "bytes-annex", etcd)}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	admin := user(t, "admin", "system:masters")
	namespaces := []string{namespace(t), namespace(t)}
	var written []map[string]string // by server: key to value
	for i, w := range servers {
		k := newKubectl(t, w.direct(admin))
		for _, o := range storedObjects {
			k.given(strings.ReplaceAll(o, "NS", namespaces[i]), "create", "-f", "-", "--field-manager=test")
		}
		k.given(strings.ReplaceAll(appliedObject, "NS", namespaces[i]), "apply", "--server-side", "-f", "-")
		k.must("-n", namespaces[i], "label", "flunder", "plain", "changed=true", "--field-manager=test")
		k.given(strings.ReplaceAll(appliedObject, "NS", namespaces[i]), "apply", "--server-side", "-f", "-")
		got, err := client.Get(ending(t), "", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]string{}
		for _, kv := range got.Kvs {
			if key := string(kv.Key); strings.Contains(key, namespaces[i]) {
				values[strings.ReplaceAll(key, namespaces[i], "NS")] = natural.Replace(strings.ReplaceAll(string(kv.Value), namespaces[i], "NS"))
			}
		}
		written = append(written, values)
	}
	if len(written[0]) != len(storedObjects)+1 {
		t.Errorf("upstream's server has written %d objects", len(written[0]))
	}
	for key, want := range written[0] {
		if got := written[1][key]; got != want {
			t.Errorf("%s is\n%s\nupstream's is\n%s", key, got, want)
		}
	}
	for key := range written[1] {
		if _, found := written[0][key]; !found {
			t.Errorf("%s is not where upstream has it", key)
		}
	}

	// Objects created by one server are changed by the other, and their other fields stay unchanged.
	for i, by := range []*wardle{servers[1], servers[0]} {
		key := "/registry/" + group + "/" + group + "/flunders/" + namespaces[i] + "/fischer"
		value := func() string {
			t.Helper()
			got, err := client.Get(ending(t), key)
			if err != nil || len(got.Kvs) != 1 {
				t.Fatalf("%s: %v, %v", key, got, err)
			}
			return string(got.Kvs[0].Value)
		}
		before := value()
		k := newKubectl(t, by.direct(admin))
		label := []string{"-n", namespaces[i], "label", "flunder", "fischer", "--field-manager=test"}
		k.must(append(label, "other=server")...)
		if value() == before {
			t.Errorf("%s has changed nothing", by.name)
		}
		k.must(append(label, "other-")...)
		if after := value(); after != before {
			t.Errorf("%s has left\n%s\nof\n%s", by.name, after, before)
		}
	}

	var paths []string
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		for _, ns := range namespaces {
			base := "/apis/" + group + "/" + version + "/namespaces/" + ns + "/flunders"
			paths = append(
				paths,
				base,
				base+"/plain",
				base+"/beta",
				base+"/applied",
				base+"?labelSelector=changed",
				base+"?fieldSelector=metadata.name=beta",
			)
		}
	}
	for _, path := range append(paths, "/apis/"+group+"/v1alpha1/fischers") {
		_, want := get(t, servers[0].direct(admin), path, nil)
		status, got := get(t, servers[1].direct(admin), path, nil)
		if status != http.StatusOK || got != want {
			t.Errorf("%s: %d\n%s\nupstream's:\n%s", path, status, got, want)
		}
	}
}

var storedObjects = []string{
	"{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: empty, namespace: NS}}",
	"{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: plain, namespace: NS}, spec: {reference: other}}",
	"{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: fischer, namespace: NS}, spec: {reference: fish, " +
		"referenceType: Fischer}}",
	"{apiVersion: wardle.example.com/v1beta1, kind: Flunder, metadata: {name: beta, namespace: NS}, spec: {fischerReference: fish, " +
		"referenceType: Fischer}}",
	`{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: full, namespace: NS, labels: {a: b, c: d}, annotations: {z: "<&> ü \" \u2028", empty: ""},
	  finalizers: [example.com/f], ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: c, uid: 0c4dc9b1-0000-4000-8000-000000000000, controller: true}]}, spec: {reference: a}, status: {}}`,
	"{apiVersion: wardle.example.com/v1alpha1, kind: Fischer, metadata: {name: NS}, disallowedFlunders: [one, two]}",
}

const appliedObject = "{apiVersion: wardle.example.com/v1alpha1, kind: Flunder, metadata: {name: applied, namespace: NS, labels: " +
	"{tier: back}}, spec: {reference: other}}"

// replacer replaces text that differs from object to object by nature.
type replacer []struct {
	pattern *regexp.Regexp
	word    string
}

func (r replacer) Replace(text string) string {
	for _, p := range r {
		text = p.pattern.ReplaceAllString(text, p.word)
	}
	return text
}

var natural = replacer{
	{regexp.MustCompile(`"uid":"[0-9a-f]{8}-[0-9a-f-]{27}"`), `"uid":"UID"`},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
}

// The commands in upstream's README for a server without an aggregator: authorities by openssl, and a command that
// shows that it serves.
func TestDropIn_documentedCommand(t *testing.T) {
	etcd := startEtcd(t)
	dir := t.TempDir()
	shell := func(script string) string {
		t.Helper()
		cmd := exec.CommandContext(ending(t), "sh", "-ec", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	// The first command asks for a name, which is given here.
	shell(`openssl req -nodes -new -x509 -keyout ca.key -out ca.crt -subj /CN=ca
openssl req -out client.csr -new -newkey rsa:4096 -nodes -keyout client.key -subj "/CN=development/O=system:masters"
openssl x509 -req -days 365 -in client.csr -CA ca.crt -CAkey ca.key -set_serial 01 -sha256 -out client.crt
openssl pkcs12 -export -in ./client.crt -inkey ./client.key -out client.p12 -passout pass:password`)
	kubeconfig := filepath.Join(dir, "config")
	if err := kube.WriteKubeconfig(kubeconfig, host.Admin()); err != nil {
		t.Fatal(err)
	}
	for _, server := range []struct {
		program string
		args    []string
	}{
		{"sample-apiserver", []string{"--cert-dir", filepath.Join(dir, "certificates")}},
		{"wardle", []string{"serve", "--aggregated", "--storage", "etcd", "--data-dir", filepath.Join(dir, "data")}},
	} {
		t.Run(server.program, func(t *testing.T) {
			p, err := kube.Run(ending(t), run, kube.Program{
				Name: "known-command-" + server.program, Path: filepath.Join(bin, server.program), Ports: 1,
				Args: func(ports []int) []string {
					return append(server.args, "--secure-port", fmt.Sprint(ports[0]), "--etcd-servers", etcd.Endpoint(),
						"--client-ca-file", filepath.Join(dir, "ca.crt"),
						"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)
				},
				Ready: func(ctx context.Context, ports []int) error {
					return exec.CommandContext(ctx, "curl", "-fsk", fmt.Sprintf("https://localhost:%d/readyz", ports[0])).Run()
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Kill)
			// The port is a free one instead of 8443.
			out := shell(
				fmt.Sprintf(
					`curl -fv -k --cert-type P12 --cert client.p12:password `+
						`https://localhost:%d/apis/wardle.example.com/v1alpha1/namespaces/default/flunders`,
					p.Port(0),
				),
			)
			if !strings.Contains(out, `"kind": "FlunderList"`) && !strings.Contains(out, `"kind":"FlunderList"`) {
				t.Error(out)
			}
			cmd := exec.CommandContext(
				ending(t),
				"curl",
				"-fsk",
				fmt.Sprintf("https://localhost:%d/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", p.Port(0)),
			)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("without the certificate: %s", out)
			}
		})
	}
}
