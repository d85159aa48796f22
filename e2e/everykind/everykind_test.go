// Package everykind serves every kind that k8s.io/api has, by facts that are generated when its test runs.
package everykind

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// packages are the packages of k8s.io/api whose kinds TestEveryKind serves. Generating and building all of them takes
// minutes, so make kinds selects them all, and CI three.
var packages = flag.String("kinds", "networking/v1,node/v1,policy/v1", "packages of k8s.io/api whose kinds are served and written, or all")

// ownGroups are the groups that a server serves by itself. Their types are served in another group.
var ownGroups = []string{"authentication.k8s.io", "authorization.k8s.io", "rbac.authorization.k8s.io"}

// ownCore are the kinds of the core group that a server serves by itself. A server can only have one of each.
var ownCore = []string{"Namespace", "ServiceAccount"}

// apiKind is a kind of k8s.io/api that is stored.
type apiKind struct {
	Package, Import, Kind, Resource string
	GV, as                          schema.GroupVersion
	Cluster, status                 bool
}

// Every kind that Kubernetes stores is served by generated facts alone, and keeps all content of its Go type: for
// each kind, an object with nothing but a name, and the object with all fields from Kubernetes' own tests of
// compatibility.
func TestEveryKind(t *testing.T) {
	api := moduleDir(t, "k8s.io/api")
	layers := layersOf(t, api)
	program := writeProgram(t, layers)
	for i, kinds := range layers {
		t.Run(fmt.Sprint("layer ", i), func(t *testing.T) {
			client := newKindsClient(t, start(t, program, i), kinds)
			for _, k := range kinds {
				t.Run(k.GV.String()+" "+k.Kind, func(t *testing.T) { client.check(t, api, k) })
			}
		})
	}
}

func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

var clusterScopedTag = regexp.MustCompile(`\+genclient:nonNamespaced[\s\S]*?\ntype (\w+) struct`)

// layersOf returns the kinds in layers, each of which has one version of a group: a server serves a kind in several
// versions only with conversions between them.
func layersOf(t *testing.T, api string) [][]apiKind {
	t.Helper()
	var layers [][]apiKind
	depth := map[string]int{}
	versions := clientscheme.Scheme.PrioritizedVersionsAllGroups()
	for _, gv := range versions {
		kinds := kindsIn(t, api, gv)
		if len(kinds) == 0 {
			continue
		}
		i := depth[gv.Group]
		depth[gv.Group]++
		if i == len(layers) {
			layers = append(layers, nil)
		}
		layers[i] = append(layers[i], kinds...)
	}
	return layers
}

func kindsIn(t *testing.T, api string, gv schema.GroupVersion) []apiKind {
	t.Helper()
	var kinds []apiKind
	known := clientscheme.Scheme.KnownTypes(gv)
	for _, name := range sortedNames(known) {
		goType := known[name]
		importPath := goType.PkgPath()
		pkg := strings.TrimPrefix(importPath, "k8s.io/api/")
		_, listed := known[name+"List"]
		_, object := reflect.New(goType).Interface().(metav1.Object)
		if !listed || !object || pkg == importPath || gv.Group == "" && slices.Contains(ownCore, name) || !wanted(pkg) {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(gv.WithKind(name))
		k := apiKind{Package: pkg, Import: importPath, Kind: name, Resource: resource.Resource, GV: gv, as: gv}
		if slices.Contains(ownGroups, gv.Group) {
			k.as.Group = gv.Group + ".example.com"
		}
		_, k.status = goType.FieldByName("Status")
		k.Cluster = slices.Contains(clusterScoped(t, filepath.Join(api, pkg)), name)
		kinds = append(kinds, k)
	}
	return kinds
}

func wanted(pkg string) bool {
	return *packages == "all" || slices.Contains(strings.Split(*packages, ","), pkg)
}

func sortedNames(known map[string]reflect.Type) []string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func clusterScoped(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "types.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range clusterScopedTag.FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

var programTemplate = template.Must(template.New("program").Parse(`
// Command everykind serves kinds of k8s.io/api: those of the layer that LAYER names.
package main

import (
	"os"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/program"
{{range .Packages}}
	{{.Name}} "{{.Import}}"
	{{.Name}}facts "github.com/annexapi/annex/e2e/everykind/testdata/{{.Name}}"
{{- end}}
)

func main() {
	servers := map[string]annex.Server{
{{- range $i, $groups := .Layers}}
		"{{$i}}": {Name: "everykind", Groups: []annex.Group{
{{- range $groups}}
			{Name: "{{.Name}}", Kinds: []annex.Kind{
{{- range .Kinds}}
				annex.KindOf[{{.Name}}.{{.Kind}}, {{.Name}}.{{.Kind}}List]("{{.Resource}}", {{.Name}}facts.API).
					UnconditionalUpdate(){{if .Cluster}}.ClusterScoped(){{end}},
{{- end}}
			}},
{{- end}}
		}},
{{- end}}
	}
	program.Main(servers[os.Getenv("LAYER")])
}
`))

// Name is the package's import name in the program, and its folder of facts.
func (k apiKind) Name() string { return strings.ReplaceAll(k.Package, "/", "") }

// writeProgram generates the facts of all packages, and returns the program that serves the kinds.
func writeProgram(t *testing.T, layers [][]apiKind) string {
	t.Helper()
	bin := t.TempDir()
	run(t, "go", "build", "-o", bin+"/annex", "github.com/annexapi/annex/cmd/annex")
	type group struct {
		Name  string
		Kinds []apiKind
	}
	data := struct {
		Packages []apiKind
		Layers   [][]group
	}{}
	dir := "testdata"
	for _, kinds := range layers {
		var groups []group
		for _, k := range kinds {
			if !slices.ContainsFunc(data.Packages, func(p apiKind) bool { return p.Package == k.Package }) {
				data.Packages = append(data.Packages, k)
				run(t, bin+"/annex", "generate", "--for", k.Import, "--as", strings.TrimPrefix(k.as.String(), "/"), "./"+filepath.Join(dir, k.Name()))
			}
			i := slices.IndexFunc(groups, func(g group) bool { return g.Name == k.as.Group })
			if i < 0 {
				i = len(groups)
				groups = append(groups, group{Name: k.as.Group})
			}
			groups[i].Kinds = append(groups[i].Kinds, k)
		}
		data.Layers = append(data.Layers, groups)
	}
	var text strings.Builder
	if err := programTemplate.Execute(&text, data); err != nil {
		t.Fatal(err)
	}
	formatted, err := format.Source([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), formatted, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "go", "build", "-o", bin+"/everykind", "./"+dir)
	return bin + "/everykind"
}

// start runs the program until the test is over, and returns its administrator's config.
func start(t *testing.T, program string, layer int) *rest.Config {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	cmd := exec.Command(program, "serve", "--data-dir", data, "--secure-port", "0")
	cmd.Env = append(os.Environ(), fmt.Sprint("LAYER=", layer))
	var log strings.Builder
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer hung.Stop()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the server ended with %v; it said:\n%s", err, log.String())
		}
	})
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the server ended before it listened: %v\n%s", err, log.String())
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func run(t *testing.T, command ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

const protobufType = "application/vnd.kubernetes.protobuf"

// kindsClient writes objects of kinds in all media types.
type kindsClient struct {
	config *rest.Config
	http   *http.Client
	scheme *runtime.Scheme
}

func newKindsClient(t *testing.T, config *rest.Config, kinds []apiKind) *kindsClient {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	scheme := runtime.NewScheme()
	for _, k := range kinds {
		goType := clientscheme.Scheme.KnownTypes(k.GV)[k.Kind]
		scheme.AddKnownTypeWithName(k.as.WithKind(k.Kind), reflect.New(goType).Interface().(runtime.Object))
	}
	return &kindsClient{config, client, scheme}
}

func (c *kindsClient) path(k apiKind, more ...string) string {
	prefix := "/apis/" + k.as.String()
	if k.as.Group == "" {
		prefix = "/api/" + k.as.Version
	}
	if !k.Cluster {
		prefix += "/namespaces/default"
	}
	return strings.Join(append([]string{prefix, k.Resource}, more...), "/")
}

// do sends a request, which has to be answered with the code.
func (c *kindsClient) do(t *testing.T, code int, method, path, sends, accepts string, body []byte) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	answer := rest.Result{}
	var status int
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.NegotiatedSerializer = &schema.GroupVersion{}, serializer.NewCodecFactory(c.scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, c.http)
	if err != nil {
		t.Fatal(err)
	}
	request := client.Verb(method).RequestURI(path).SetHeader("Accept", accepts)
	if body != nil {
		request = request.SetHeader("Content-Type", sends).Body(body)
	}
	answer = request.Do(ctx).StatusCode(&status)
	raw, err := answer.Raw()
	if status != code {
		t.Fatalf("%s %s: got %d, want %d: %v: %.2000s", method, path, status, code, err, raw)
	}
	return raw
}

func (c *kindsClient) yaml() *kjson.Serializer {
	return kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, c.scheme, c.scheme, kjson.SerializerOptions{Yaml: true})
}

// decode reads an object in a media type.
func (c *kindsClient) decode(t *testing.T, k apiKind, mediaType string, raw []byte) runtime.Object {
	t.Helper()
	var err error
	obj := reflect.New(clientscheme.Scheme.KnownTypes(k.GV)[k.Kind]).Interface().(runtime.Object)
	switch mediaType {
	case protobufType:
		_, _, err = protobuf.NewSerializer(c.scheme, c.scheme).Decode(raw, nil, obj)
	case "application/yaml":
		_, _, err = c.yaml().Decode(raw, nil, obj)
	default:
		err = json.Unmarshal(raw, obj)
	}
	if err != nil {
		t.Fatalf("decode %s as %s: %v: %.2000s", k.Kind, mediaType, err, raw)
	}
	return obj
}

// encode writes an object in a media type.
func (c *kindsClient) encode(t *testing.T, k apiKind, mediaType string, obj runtime.Object) []byte {
	t.Helper()
	obj.GetObjectKind().SetGroupVersionKind(k.as.WithKind(k.Kind))
	var raw []byte
	var err error
	switch mediaType {
	case protobufType:
		raw, err = runtime.Encode(protobuf.NewSerializer(c.scheme, c.scheme), obj)
	case "application/yaml":
		raw, err = runtime.Encode(c.yaml(), obj)
	default:
		raw, err = json.Marshal(obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// full returns the object with all fields.
func (c *kindsClient) full(t *testing.T, api string, k apiKind, name string) runtime.Object {
	t.Helper()
	group := k.GV.Group
	if group == "" {
		group = "core"
	}
	raw, err := os.ReadFile(filepath.Join(api, "testdata", "HEAD", group+"."+k.GV.Version+"."+k.Kind+".json"))
	if err != nil {
		t.Fatal(err)
	}
	// Raw extensions are compared byte by byte.
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		t.Fatal(err)
	}
	// The type of conditions that most kinds share allows three values.
	obj := c.decode(t, k, "application/json", bytes.ReplaceAll(compact.Bytes(), []byte(`"statusValue"`), []byte(`"True"`)))
	m := obj.(metav1.Object)
	meta := reflect.ValueOf(obj).Elem().FieldByName("ObjectMeta")
	meta.SetZero()
	if k.Package == "extensions/v1beta1" {
		// A field of this package has a kubebuilder marker, so its kinds obey the schema that controller-gen
		// generates, which drops the metadata of templates.
		dropMetadata(reflect.ValueOf(obj).Elem())
	}
	m.SetName(name)
	m.SetLabels(map[string]string{"full": "yes"})
	return obj
}

// dropMetadata removes the metadata of an object and of all templates within it.
func dropMetadata(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[metav1.ObjectMeta]():
		v.SetZero()
	case v.Kind() == reflect.Pointer && !v.IsNil():
		dropMetadata(v.Elem())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			dropMetadata(v.Index(i))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				dropMetadata(v.Field(i))
			}
		}
	}
}

// same compares objects without their metadata, and without status if it is written separately.
func same(t *testing.T, k apiKind, what string, got, want runtime.Object, status bool) {
	t.Helper()
	got, want = got.DeepCopyObject(), want.DeepCopyObject()
	for _, obj := range []runtime.Object{got, want} {
		v := reflect.ValueOf(obj).Elem()
		v.FieldByName("ObjectMeta").SetZero()
		v.FieldByName("TypeMeta").SetZero()
		if k.status && !status {
			v.FieldByName("Status").SetZero()
		}
	}
	if !equality.Semantic.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		t.Errorf("%s: got\n%s\nwant\n%s", what, a, b)
	}
}

// required are the fields that a kind's markers require.
var required = map[string]map[string]any{
	"Event":     {"involvedObject": map[string]any{}},
	"IPAddress": {"spec": map[string]any{"parentRef": map[string]any{"resource": "services", "name": "one"}}},
}

// minimal returns an object with only its required fields.
func (k apiKind) minimal(name string) []byte {
	obj := map[string]any{"apiVersion": k.as.String(), "kind": k.Kind, "metadata": map[string]any{"name": name}}
	if k.Kind != "Event" || k.GV.Group == "" {
		maps.Copy(obj, required[k.Kind])
	}
	raw, _ := json.Marshal(obj) // maps of strings can be encoded
	return raw
}

// check writes objects of a kind, and reads them.
func (c *kindsClient) check(t *testing.T, api string, k apiKind) {
	const plain = "application/json"
	media := []string{plain, "application/yaml", protobufType}
	minimal, applied := k.minimal("minimal"), k.minimal("applied")
	names := []string{"minimal", "applied"}
	c.do(t, 201, "POST", c.path(k), plain, plain, minimal)
	c.do(t, 201, "PATCH", c.path(k, "applied?fieldManager=m"), "application/apply-patch+yaml", plain, applied)
	for i, mediaType := range media {
		name := fmt.Sprint("full", i)
		names = append(names, name)
		full := c.full(t, api, k, name)
		c.do(t, 201, "POST", c.path(k), mediaType, mediaType, c.encode(t, k, mediaType, full))
		for _, accepts := range media {
			got := c.decode(t, k, accepts, c.do(t, 200, "GET", c.path(k, name), "", accepts, nil))
			same(t, k, "sent as "+mediaType+", read as "+accepts, got, full, false)
		}
		got := c.decode(t, k, mediaType, c.do(t, 200, "GET", c.path(k, name), "", mediaType, nil))
		got.(metav1.Object).SetLabels(map[string]string{"updated": "yes"})
		updated := c.decode(t, k, mediaType, c.do(t, 200, "PUT", c.path(k, name), mediaType, mediaType, c.encode(t, k, mediaType, got)))
		same(t, k, "updated as "+mediaType, updated, full, false)
		if updated.(metav1.Object).GetLabels()["updated"] != "yes" {
			t.Errorf("updated as %s: labels %v", mediaType, updated.(metav1.Object).GetLabels())
		}
		if k.status {
			status := c.full(t, api, k, name)
			raw := c.do(t, 200, "PUT", c.path(k, name, "status"), mediaType, mediaType, c.encode(t, k, mediaType, status))
			same(t, k, "status as "+mediaType, c.decode(t, k, mediaType, raw), full, true)
		}
	}
	// All fields of the object are applied to an object that has none of them, and to one with all of them.
	for _, name := range []string{"applied", "full0"} {
		full := c.full(t, api, k, name)
		path := c.path(k, name+"?fieldManager=m&force=true")
		answer := c.do(t, 200, "PATCH", path, "application/apply-patch+yaml", plain, c.encode(t, k, plain, full))
		same(t, k, "applied to "+name, c.decode(t, k, plain, answer), full, false)
	}
	for _, accepts := range media {
		c.do(t, 200, "GET", c.path(k), "", accepts, nil)
	}
	var list struct {
		Items []metav1.PartialObjectMetadata
	}
	if err := json.Unmarshal(c.do(t, 200, "GET", c.path(k), "", plain, nil), &list); err != nil || len(list.Items) != len(names) {
		t.Errorf("list: %d items, %v; want %d", len(list.Items), err, len(names))
	}
	for _, name := range names {
		c.do(t, 200, "DELETE", c.path(k, name), "", plain, nil)
		c.do(t, 404, "GET", c.path(k, name), "", plain, nil)
	}
}
