package apitest_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/manifests"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// deployments are choices that together cover everything that can be written.
var deployments = map[string]manifests.Config{
	"embedded": {Storage: storedIn(embedded.Dir(""))},
	"memory":   {Storage: storedIn(memory.Storage()), UserRoles: true, ServiceMonitor: true},
	"files": {
		Storage:      storedIn(files.Dir("")),
		Name:         "other",
		Namespace:    "elsewhere",
		StorageClass: "fast",
		Args:         []string{"--history-age=1h", "--x={{ .y }}"},
	},
	"etcd":        {Storage: inEtcd, EtcdServers: []string{"https://etcd.example.com:2379"}, Replicas: 3},
	"single etcd": {Storage: inEtcd, EtcdServers: []string{"https://etcd.example.com:2379"}, EtcdSecret: "client", Replicas: 1},
	"own etcd":    {Storage: inEtcd, WithEtcd: true, Certificates: manifests.CertManager, Namespace: "own"},
	"lean": {
		Storage:            storedIn(embedded.Dir("")),
		Certificates:       "secret=tls",
		CABundle:           []byte("authority"),
		WithoutFlowControl: true,
		DisablePlugins: []string{
			"NamespaceLifecycle",
			"MutatingAdmissionPolicy",
			"MutatingAdmissionWebhook",
			"ValidatingAdmissionPolicy",
			"ValidatingAdmissionWebhook",
		},
	},
	"webhooks too": {
		Storage:        storedIn(embedded.Dir("")),
		DisablePlugins: []string{"NamespaceLifecycle", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"},
	},
}

// storedIn returns a driver that has no servers.
func storedIn(d driver.Driver) func([]string) (driver.Driver, []driver.Driver, error) {
	return func([]string) (driver.Driver, []driver.Driver, error) { return d, nil, nil }
}

func inEtcd(servers []string) (driver.Driver, []driver.Driver, error) {
	return etcd.Cluster(etcd.Options{Endpoints: servers}), nil, nil
}

// definitionOf compiles a server as annex does.
func definitionOf(t *testing.T, server annex.Server) *define.Server {
	t.Helper()
	definition := &define.Server{Name: server.Name}
	for _, c := range server.Controllers {
		definition.Controllers = append(
			definition.Controllers,
			define.Controller{Name: c.Name, Run: func(context.Context, any) error { return nil }},
		)
	}
	for _, g := range server.Groups {
		define.AddGroup(definition, g.Name, g.Kinds)
	}
	if err := define.Complete(definition); err != nil {
		t.Fatal(err)
	}
	return definition
}

func deployment(t *testing.T, name string) *manifests.Config {
	t.Helper()
	c := deployments[name]
	c.Definition, c.Image = definitionOf(t, shop()), "registry.example.com/shop:v1"
	if err := c.Complete(); err != nil {
		t.Fatal(err)
	}
	return &c
}

func objectsOf(t *testing.T, c *manifests.Config) []*unstructured.Unstructured {
	t.Helper()
	objects, err := c.Objects()
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Objects of other APIs than Kubernetes' own have no Go types here; e2e/cluster sends them to a real kube-apiserver.
func TestManifests_knownFieldsOnly(t *testing.T) {
	t.Parallel()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for name := range deployments {
		names, known := map[string]bool{}, 0
		for _, o := range objectsOf(t, deployment(t, name)) {
			id := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
			if names[id] {
				t.Errorf("%s: %s twice", name, id)
			}
			names[id] = true
			if !scheme.Scheme.Recognizes(o.GroupVersionKind()) {
				continue
			}
			known++
			text, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := strict.Decode(text, nil, nil); err != nil {
				t.Errorf("%s: %s: %v\n%s", name, id, err, text)
			}
		}
		if known < 6 {
			t.Errorf("%s: only %d objects", name, known)
		}
	}
}

func TestManifests_permissions(t *testing.T) {
	t.Parallel()
	rule := func(group, resources, names, verbs string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups:     []string{group},
			Resources:     strings.Fields(resources),
			ResourceNames: strings.Fields(names),
			Verbs:         strings.Fields(verbs),
		}
	}
	watched := "get list watch"
	namespaces := rule("", "namespaces", "", watched)
	flow := rule("flowcontrol.apiserver.k8s.io", "flowschemas prioritylevelconfigurations", "", "list watch")
	all := rule("admissionregistration.k8s.io", "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations "+
		"validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations", "", "list watch")
	self := rule("apiregistration.k8s.io", "apiservices", "v1.shop.example.com v1beta1.shop.example.com", "get patch")
	secret, lease := rule(
		"",
		"secrets",
		"shop-serving",
		"get list watch update patch",
	), rule(
		"coordination.k8s.io",
		"leases",
		"shop-serving",
		"get update patch",
	)
	workload := rule("apps", "statefulsets", "shop", "get")
	for name, want := range map[string]struct{ cluster, own []rbacv1.PolicyRule }{
		"embedded": {[]rbacv1.PolicyRule{namespaces, all, flow, self}, []rbacv1.PolicyRule{secret, lease, workload}},
		"own etcd": {[]rbacv1.PolicyRule{namespaces, all, flow}, nil},
		"lean":     {nil, nil},
		"webhooks too": {[]rbacv1.PolicyRule{namespaces, rule("admissionregistration.k8s.io", "mutatingwebhookconfigurations "+
			"validatingwebhookconfigurations", "", "list watch"), flow, self}, []rbacv1.PolicyRule{secret, lease, workload}},
	} {
		var cluster, own []rbacv1.PolicyRule
		bound, roles := map[string]bool{}, []string{}
		for _, o := range objectsOf(t, deployment(t, name)) {
			var role rbacv1.Role
			switch o.GetKind() {
			case "Role", "ClusterRole":
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
					t.Fatal(err)
				}
				roles = append(roles, role.Name)
				if o.GetKind() == "Role" {
					own = append(own, role.Rules...)
				} else {
					cluster = append(cluster, role.Rules...)
				}
			case "RoleBinding", "ClusterRoleBinding":
				to, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
				bound[to] = true
			}
		}
		normal := func(rules []rbacv1.PolicyRule) string {
			var lines []string
			for _, r := range rules {
				lines = append(lines, r.String())
			}
			return strings.ReplaceAll(strings.ReplaceAll(strings.Join(lines, "\n"), "nil", ""), "[]string{}", "")
		}
		if got := normal(cluster); got != normal(want.cluster) {
			t.Errorf("%s: in the cluster\n%s\nwant\n%s", name, got, normal(want.cluster))
		}
		if got := normal(own); got != normal(want.own) {
			t.Errorf("%s: in the namespace\n%s\nwant\n%s", name, got, normal(want.own))
		}
		for _, role := range append(roles, "extension-apiserver-authentication-reader", "system:auth-delegator") {
			if !bound[role] {
				t.Errorf("%s: no subject is bound to %s", name, role)
			}
		}
		if len(bound) != len(roles)+2 {
			t.Errorf("%s: bound to %v", name, bound)
		}
	}
}

func TestManifests_cacheLimits(t *testing.T) {
	t.Parallel()
	shelves := func() *annex.KindBuilder[v1.Shelf] {
		return annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped()
	}
	for name, test := range map[string]struct {
		server  annex.Server
		storage func([]string) (driver.Driver, []driver.Driver, error)
		bounded bool
	}{
		"embedded":                   {only(widgets(), shelves()), storedIn(embedded.Dir("")), true},
		"etcd":                       {only(widgets(), shelves()), inEtcd, false},
		"etcd, with a kind in files": {only(widgets(), shelves().StoredIn(files.Dir(""))), inEtcd, true},
	} {
		c := manifests.Config{Definition: definitionOf(t, test.server), Image: "i", Storage: test.storage}
		if name != "embedded" {
			c.EtcdServers = []string{"https://etcd.example.com:2379"}
		}
		if err := c.Complete(); err != nil {
			t.Fatal(err)
		}
		text, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"--object-cache-size=256Mi\n", "--value-cache-size=256Mi\n"} {
			if strings.Contains(string(text), flag) != test.bounded {
				t.Errorf("%s: %q is in the arguments: %v, want %v", name, flag, !test.bounded, test.bounded)
			}
		}
	}
}

// helmFunctions are the Helm functions that the charts use.
var helmFunctions = template.FuncMap{
	"toYaml": func(v any) (string, error) {
		text, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(text), "\n"), err
	},
	"nindent": func(n int, text string) string {
		return "\n" + strings.Repeat(" ", n) + strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", n))
	},
	"quote": func(text string) string { return `"` + text + `"` },
	"int":   func(v any) int { return int(v.(float64)) },
}

func render(t *testing.T, chart []manifests.File, name, namespace string, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	data := map[string]any{"Release": map[string]string{"Name": name, "Namespace": namespace}, "Values": map[string]any{}}
	for _, f := range chart {
		if f.Path == "values.yaml" {
			all := map[string]any{}
			if err := yaml.Unmarshal(f.Text, &all); err != nil {
				t.Fatal(err)
			}
			for key, value := range values {
				all[key] = value
			}
			data["Values"] = all
		}
	}
	var objects []*unstructured.Unstructured
	for _, f := range chart {
		if !strings.HasPrefix(f.Path, "templates/") {
			continue
		}
		parsed, err := template.New(f.Path).Option("missingkey=error").Funcs(helmFunctions).Parse(string(f.Text))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, data); err != nil {
			t.Fatal(err)
		}
		object := map[string]any{}
		if err := yaml.Unmarshal(out.Bytes(), &object); err != nil {
			t.Fatalf("%s: %v\n%s", f.Path, err, out.String())
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
	return objects
}

func texts(t *testing.T, objects []*unstructured.Unstructured, but string) []string {
	t.Helper()
	var all []string
	for _, o := range objects {
		if o.GetKind() == but {
			continue
		}
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	slices.Sort(all)
	return all
}

func TestManifests_chart_equalsPlain(t *testing.T) {
	t.Parallel()
	for name := range deployments {
		c := deployment(t, name)
		chart, err := c.Helm()
		if err != nil {
			t.Fatal(err)
		}
		got, want := texts(t, render(t, chart, c.Name, c.Namespace, nil), ""), texts(t, objectsOf(t, c), "Namespace")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-plain +chart):\n%s", name, diff)
		}
	}
}

func TestManifests_chart_values(t *testing.T) {
	t.Parallel()
	c := deployment(t, "own etcd")
	chart, err := c.Helm()
	if err != nil {
		t.Fatal(err)
	}
	other := deployments["own etcd"]
	other.Definition, other.Name, other.Namespace, other.Replicas, other.Image, other.Args = c.Definition, "another", "place", 5,
		"else:v2", []string{
			"--history-age=2h",
		}
	if err := other.Complete(); err != nil {
		t.Fatal(err)
	}
	want := objectsOf(t, &other)
	for _, o := range want {
		if o.GetKind() == "Deployment" {
			if err := unstructured.SetNestedStringMap(
				o.Object,
				map[string]string{"disk": "ssd"},
				"spec",
				"template",
				"spec",
				"nodeSelector",
			); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := render(t, chart, "another", "place", map[string]any{
		"replicas": 5.0, "image": "else:v2", "extraArgs": []any{"--history-age=2h"}, "nodeSelector": map[string]any{"disk": "ssd"},
	})
	if diff := cmp.Diff(texts(t, want, "Namespace"), texts(t, got, "")); diff != "" {
		t.Errorf("-plain +chart:\n%s", diff)
	}
}

func TestManifests_kustomization_namesEveryObject(t *testing.T) {
	t.Parallel()
	for name := range deployments {
		c := deployment(t, name)
		files, err := c.Kustomize()
		if err != nil {
			t.Fatal(err)
		}
		var kustomization struct{ Resources []string }
		if err := yaml.Unmarshal(files[0].Text, &kustomization); err != nil {
			t.Fatal(err)
		}
		var all []*unstructured.Unstructured
		for i, f := range files[1:] {
			if f.Path != kustomization.Resources[i] {
				t.Errorf("%s: %s in the place of %s", name, f.Path, kustomization.Resources[i])
			}
			object := map[string]any{}
			if err := yaml.Unmarshal(f.Text, &object); err != nil {
				t.Fatal(err)
			}
			all = append(all, &unstructured.Unstructured{Object: object})
		}
		if diff := cmp.Diff(texts(t, objectsOf(t, c), ""), texts(t, all, "")); diff != "" {
			t.Errorf("%s (-plain +kustomize):\n%s", name, diff)
		}
	}
}

func TestManifests_folder_isRewritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	file := func(name, text string) manifests.File {
		return manifests.File{Path: name, Text: []byte(manifests.Mark + "\n" + text)}
	}
	write := func(dryRun bool, files ...manifests.File) string {
		t.Helper()
		changes, err := manifests.Write(dir, files, dryRun)
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, c := range changes {
			name, err := filepath.Rel(dir, c.Path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, name+" "+c.What)
		}
		return strings.Join(all, ", ")
	}
	if got := write(true, file("a.yaml", "1")); got != "a.yaml created" {
		t.Error(got)
	}
	if _, err := os.Stat(at("a.yaml")); err == nil {
		t.Error("a dry run wrote a file")
	}
	if got := write(false, file("a.yaml", "1"), file("templates/b.yaml", "1")); got != "a.yaml created, templates/b.yaml created" {
		t.Error(got)
	}
	if err := os.WriteFile(at("own.yaml"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := write(false, file("a.yaml", "2"), file("c.yaml", "1")); got != "a.yaml changed, c.yaml created, templates/b.yaml removed" {
		t.Error(got)
	}
	if got := write(false, file("a.yaml", "2"), file("c.yaml", "1")); got != "a.yaml unchanged, c.yaml unchanged" {
		t.Error(got)
	}
	if got := write(false, file("a.yaml", "3"), file("own.yaml", "1")); !strings.Contains(got, "not written by this verb: "+at("own.yaml")) {
		t.Error(got)
	}
	for name, want := range map[string]string{"a.yaml": manifests.Mark + "\n2", "own.yaml": "mine"} {
		if text, err := os.ReadFile(at(name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestManifests_separateControllers(t *testing.T) {
	t.Parallel()
	definition := definitionOf(t, factory())
	accounts := func(separate bool) (server, leases string) {
		t.Helper()
		c := manifests.Config{Definition: definition, Image: "i", Storage: storedIn(embedded.Dir("")), SeparateControllers: separate}
		if err := c.Complete(); err != nil {
			t.Fatal(err)
		}
		roles := map[string]string{}
		for _, o := range objectsOf(t, &c) {
			text, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case o.GetKind() == "StatefulSet":
				server = string(text)
			case o.GetKind() == "Role" && strings.Contains(string(text), definition.Name+"-controllers"):
				roles[o.GetName()] = string(text)
			case o.GetKind() == "RoleBinding":
				if to, _, _ := unstructured.NestedString(o.Object, "roleRef", "name"); roles[to] != "" {
					subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
					leases += subjects[0].(map[string]any)["name"].(string)
				}
			}
		}
		return server, leases
	}
	if server, leases := accounts(false); strings.Contains(server, "--controllers=") || leases != definition.Name {
		t.Errorf("within the server: the Lease is for %q", leases)
	}
	if server, leases := accounts(true); !strings.Contains(server, "- --controllers=\n") || leases != definition.Name+"-controllers" {
		t.Errorf("apart: the Lease is for %q; the server is\n%s", leases, server)
	}
	none := deployments["embedded"]
	none.Definition = definitionOf(t, shop())
	none.Image, none.SeparateControllers = "i", true
	if err := none.Complete(); err == nil || !strings.Contains(err.Error(), "Config.SeparateControllers: the server has none") {
		t.Errorf("without controllers: %v", err)
	}
}
