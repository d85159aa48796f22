package compared

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/cmd/annex/internal/crd/gotypes"
)

// server is a running server, with its client.
type server struct {
	host   string
	client *http.Client
}

// run runs a command to its end.
func run(t *testing.T, dir string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, tail(out))
	}
}

func tail(out []byte) []byte {
	return out[max(0, len(out)-4000):]
}

// start runs a server until the test ends.
func start(t *testing.T, program string) server {
	t.Helper()
	s, why := tryStart(t, program)
	if why != "" {
		t.Fatalf("%s ended:\n%s", program, why)
	}
	return s
}

// tryStart is start, but returns the log of a server that exits before it is ready.
func tryStart(t *testing.T, program string) (s server, why string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(program, "serve", "--data-dir", filepath.Join(dir, "data"), "--storage", "memory", "--secure-port", "0")
	cmd.Dir = dir
	var log bytes.Buffer
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		// A ready server prints three lines.
		lines := bufio.NewScanner(stdout)
		for n := 0; lines.Scan(); n++ {
			if n == 1 {
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		stop := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer stop.Stop()
		<-ended
		if err := cmd.Wait(); err != nil && why == "" {
			t.Logf("%s: %v\n%s", program, err, tail(log.Bytes()))
		}
	})
	select {
	case <-ready:
	case <-ended:
		_ = cmd.Wait() // completes the log
		return server{}, cmp.Or(log.String(), "for no reason that it printed")
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s is not ready after two minutes", program)
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "data", "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = time.Minute
	return server{config.Host, client}, ""
}

// answer is a server's response: the status code, the causes of a refusal, or the object.
type answer struct {
	code   int
	causes []string
	object map[string]any
}

func (s server) ask(ctx context.Context, method, path, mediaType string, body any) (answer, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.host+path, reader)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", mediaType)
	response, err := s.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	data, err = io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{code: response.StatusCode}
	if response.StatusCode < 300 {
		return a, json.Unmarshal(data, &a.object)
	}
	var status metav1.Status
	if err := json.Unmarshal(data, &status); err != nil {
		return answer{}, fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, data)
	}
	if status.Details != nil && response.StatusCode == http.StatusUnprocessableEntity {
		for _, c := range status.Details.Causes {
			a.causes = append(a.causes, fmt.Sprintf("%s %s: %s", c.Type, c.Field, c.Message))
		}
	} else {
		// Several causes have no fixed order.
		for line := range strings.Lines(status.Message) {
			a.causes = append(a.causes, strings.TrimSpace(line))
		}
	}
	slices.Sort(a.causes)
	a.causes = slices.Compact(a.causes)
	return a, nil
}

// apply adds a definition and waits until its kinds are served.
func (s server) apply(t *testing.T, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	d = d.DeepCopy()
	d.Spec.Conversion = nil // imported types have no conversion webhooks
	d.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	if strings.HasSuffix(d.Spec.Group, ".k8s.io") || strings.HasSuffix(d.Spec.Group, ".kubernetes.io") {
		d.Annotations = map[string]string{"api-approved.kubernetes.io": "unapproved, of a test"}
	}
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
	a, err := s.ask(t.Context(), http.MethodPost, definitions, "application/json", d)
	if err != nil || a.code != http.StatusCreated {
		t.Fatalf("%s: %d %v %v", d.Name, a.code, a.causes, err)
	}
	deadline := time.Now().Add(time.Minute)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		a, err := s.ask(t.Context(), http.MethodGet, resourcePath(d, storedVersion(d), ""), "application/json", nil)
		if err == nil && a.code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not served: %d %v %v", d.Name, a.code, a.causes, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(wait):
		}
	}
}

func storedVersion(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionVersion {
	i := slices.IndexFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	return &d.Spec.Versions[i]
}

func resourcePath(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion, name string) string {
	path := "/apis/" + d.Spec.Group + "/" + v.Name
	if d.Spec.Scope == apiextensionsv1.NamespaceScoped {
		path += "/namespaces/default"
	}
	path += "/" + d.Spec.Names.Plural
	if name != "" {
		path += "/" + name
	}
	return path
}

// project is a module with definitions.
type project struct {
	name   string
	module string   // with its version
	files  []string // patterns of the definitions' files in it
}

// mistaken finds the names of refused definitions in the output of a server that does not start.
var mistaken = regexp.MustCompile(`(?m)^\s*kind \S+ \(([^)]+)\): .*$`)

// serve imports files as types, into a folder of this module, which has the required libraries, and starts a server
// of their stored versions. Kinds that the server refuses fail the test and are left out; the second result has the
// names of their definitions.
func serve(t *testing.T, annex string, files []string) (server, map[string]bool) {
	t.Helper()
	dir, remove, err := sourceFolder()
	if err != nil {
		t.Fatal(err)
	}
	defer remove() // the built program needs no sources
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	apis := "./" + filepath.Base(dir) + "/apis"
	run(t, here, annex, append([]string{"import", "crd", "--types-only", "--output-dir", apis}, files...)...)
	run(t, here, annex, "generate", apis+"/...")
	imported, without := filepath.Join(t.TempDir(), "imported"), map[string]bool{}
	for {
		if err := os.WriteFile(filepath.Join(dir, "main.go"), program(t, apis, files, without), 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, here, "go", "build", "-o", imported, "./"+dir)
		s, why := tryStart(t, imported)
		if why == "" {
			return s, without
		}
		known := len(without)
		for _, mistake := range mistaken.FindAllStringSubmatch(why, -1) {
			without[mistake[1]] = true
			t.Errorf("is not served: %s", strings.TrimSpace(mistake[0]))
		}
		if len(without) == known {
			t.Fatalf("%s ended:\n%s", imported, tail([]byte(why)))
		}
	}
}

// sourceFolder creates a folder below this one for the sources of a program. The folder exists until remove is
// called, or the test is interrupted. Folders of earlier tests that were killed are removed.
func sourceFolder() (dir string, remove func(), err error) {
	left, err := filepath.Glob("tmp*")
	if err != nil {
		return "", nil, err
	}
	for _, dir := range left {
		var pid int
		if n, _ := fmt.Sscanf(dir, "tmp%d-", &pid); n == 1 && !alive(pid) {
			if err := os.RemoveAll(dir); err != nil {
				return "", nil, err
			}
		}
	}
	dir, err = os.MkdirTemp(".", fmt.Sprintf("tmp%d-", os.Getpid()))
	if err != nil {
		return "", nil, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-interrupted:
			os.RemoveAll(dir)
			os.Exit(1)
		case <-done:
		}
	}()
	return dir, sync.OnceFunc(func() {
		signal.Stop(interrupted)
		close(done)
		os.RemoveAll(dir)
	}), nil
}

func alive(pid int) bool {
	return syscall.Kill(pid, 0) == nil
}

// TestSourceFolder_left checks that the folder of a killed test is removed, and that of a running one is not.
func TestSourceFolder_left(t *testing.T) {
	t.Chdir(t.TempDir())
	ended := exec.Command(os.Args[0], "-test.run=^$")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	left, running := fmt.Sprintf("tmp%d-1", ended.Process.Pid), fmt.Sprintf("tmp%d-1", os.Getpid())
	for _, dir := range []string{left, running} {
		if err := os.MkdirAll(dir+"/apis", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, remove, err := sourceFolder()
	if err != nil {
		t.Fatal(err)
	}
	exists := func(dir string) bool { _, err := os.Stat(dir); return err == nil }
	if exists(left) || !exists(running) || !exists(dir) {
		t.Errorf("of a test that ended, of one that runs, made: %v, %v, %v; not false, true, true", exists(left), exists(running), exists(dir))
	}
	if remove(); exists(dir) {
		t.Error("the folder is there after remove")
	}
}

var groupName = regexp.MustCompile(`(?m)^// \+groupName=(\S+)$`)

// program returns the source of a server for the types below a folder, without the types of some definitions.
func program(t *testing.T, apis string, files []string, without map[string]bool) []byte {
	t.Helper()
	packages := map[string]string{} // names by group and version
	var imports, groups bytes.Buffer
	found, err := filepath.Glob(apis + "/*/*/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for i, doc := range found {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Dir(doc)
		name := "p" + strconv.Itoa(i)
		packages[string(groupName.FindSubmatch(text)[1])+"/"+filepath.Base(folder)] = name
		fmt.Fprintf(&imports, "\t%s \"github.com/annexapi/annex/cmd/annex/internal/crd/compared/%s\"\n", name, filepath.ToSlash(folder))
	}
	kinds, used := map[string][]string{}, map[string]bool{}
	for _, file := range files {
		for _, d := range read(t, file) {
			if without[d.Name] {
				continue
			}
			v := storedVersion(d)
			name := packages[d.Spec.Group+"/"+v.Name]
			used[name] = true
			kinds[d.Spec.Group] = append(
				kinds[d.Spec.Group],
				fmt.Sprintf("annex.KindOf[%[1]s.%[2]s, %[1]s.%[2]sList](%[3]q, %[1]s.API)", name, d.Spec.Names.Kind, d.Spec.Names.Plural),
			)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(kinds)) {
		fmt.Fprintf(&groups, "\t\t{Name: %q, Kinds: []annex.Kind{\n\t\t\t%s,\n\t\t}},\n", group, strings.Join(kinds[group], ",\n\t\t\t"))
	}
	for _, name := range slices.Sorted(maps.Values(packages)) {
		if !used[name] { // of a version that is not stored
			imports = *bytes.NewBuffer(bytes.ReplaceAll(imports.Bytes(), []byte("\t"+name+" "), []byte("\t_ ")))
		}
	}
	return fmt.Appendf(nil, "package main\n\nimport (\n\t\"github.com/annexapi/annex\"\n\t\"github.com/annexapi/annex/program\"\n\n%s)\n\nfunc main() "+
		"{\n\tprogram.Main(annex.Server{Name: \"imported\", Groups: []annex.Group{\n%s\t}})\n}\n", &imports, &groups)
}

// comparison counts the cases of a project, and the reasons for differences.
type comparison struct {
	cases, accepted, samples int
	reasons                  map[string]int
	unlike                   []string
	cut                      bool // the time was over
}

// compare compares two answers, and reports whether both accept the request.
func (c *comparison) compare(what string, s *schema, want, got answer) bool {
	c.cases++
	if want.code < 300 {
		c.accepted++
	}
	difference := ""
	switch {
	case want.code != got.code:
		difference = fmt.Sprintf("answers %d %v, not %d %v", got.code, got.causes, want.code, want.causes)
	case !slices.Equal(want.causes, got.causes):
		difference = fmt.Sprintf(
			"%d: answers\n    %s\n  not\n    %s",
			got.code,
			strings.Join(got.causes, "\n    "),
			strings.Join(want.causes, "\n    "),
		)
	case !equal(content(want.object), content(got.object)):
		difference = fmt.Sprintf("stores\n    %s\n  not\n    %s", inJSON(content(got.object)), inJSON(content(want.object)))
	}
	if difference == "" {
		return want.code < 300
	}
	if reason := reasonOf(what, want, got, s); reason != "" {
		c.reasons[reason]++
		return want.code < 300 && got.code < 300
	}
	c.unlike = append(c.unlike, what+": "+difference)
	return false
}

// content returns an object without the fields that each server sets.
func content(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	object = runtime.DeepCopyJSON(whole(object).(map[string]any))
	if metadata, ok := object["metadata"].(map[string]any); ok {
		for _, name := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "name"} {
			delete(metadata, name)
		}
	}
	return object
}

func equal(a, b any) bool { return reflect.DeepEqual(a, b) }

func inJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	if len(data) > 3000 {
		return string(data[:3000]) + "..."
	}
	return string(data)
}

// Differences that are caused by Go types, as listed in docs/reference/crd.md.
const (
	zeros  = "an explicit zero, an empty value or a null is left out, or written, by Go"
	normal = "a time or a quantity is written in its normal form"
	narrow = "a Go type takes less than the schema"
	unset  = "the scale of an object without a number of replicas is 0"
	merged = "both refuse the apply, for another field or cause"
	absent = "an applied null is taken for the zero of its Go field"
	kept   = "the metadata of an object within is kept when it is applied"
)

func reasonOf(what string, want, got answer, s *schema) string {
	causes := strings.Join(got.causes, " ")
	doesNotFit := slices.ContainsFunc(
		[]string{"quantities must match", "unable to parse quantity", "IntOrString", "cannot unmarshal", "cannot convert", "parsing time",
			"value out of range", "does not fit the Go type"},
		func(part string) bool { return strings.Contains(causes, part) },
	)
	switch {
	case strings.Contains(what, ", applied") && want.code >= http.StatusBadRequest && got.code >= http.StatusBadRequest:
		return merged
	case strings.Contains(what, " null, applied to another") && want.code < 300 && got.code == http.StatusUnprocessableEntity:
		return absent
	case strings.Contains(what, ".metadata metadata, applied") && want.code < 300 && got.code < 300:
		return kept
	case strings.HasSuffix(what, "scale, read") && want.code == http.StatusInternalServerError && got.code == http.StatusOK:
		return unset
	case want.code < 300 && (got.code == http.StatusBadRequest || got.code == http.StatusUnprocessableEntity) && doesNotFit:
		return narrow
	case want.code < 300 && got.code < 300:
		a, b := content(want.object), content(got.object)
		if equal(withoutZeros(a), withoutZeros(b)) {
			return zeros
		}
		if equal(withoutZeros(normalized(a, s)), withoutZeros(normalized(b, s))) {
			return normal
		}
		if strings.Contains(what, " null, ") {
			return zeros // a null for a field with a default
		}
	}
	return ""
}

// withoutZeros removes empty values, and values that thereby become empty.
func withoutZeros(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, inner := range v {
			if key == "generation" {
				continue
			}
			if inner := withoutZeros(inner); inner != nil {
				out[key] = inner
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		var out []any
		for _, inner := range v {
			out = append(out, withoutZeros(inner))
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case string:
		if v == "" {
			return nil
		}
	case int64:
		if v == 0 {
			return nil
		}
	case float64:
		if v == 0 {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	}
	return v
}

// normalized returns a value whose times and quantities are in their canonical form.
func normalized(v any, s *schema) any {
	if s == nil {
		return v
	}
	switch in := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, inner := range in {
			switch property, ok := s.Properties[key]; {
			case ok:
				out[key] = normalized(inner, &property)
			case s.AdditionalProperties != nil:
				out[key] = normalized(inner, s.AdditionalProperties.Schema)
			default:
				out[key] = inner
			}
		}
		return out
	case []any:
		out := make([]any, len(in))
		for i := range in {
			if out[i] = in[i]; s.Items != nil {
				out[i] = normalized(in[i], s.Items.Schema)
			}
		}
		return out
	case string:
		if at, err := time.Parse(time.RFC3339, in); err == nil && s.Format == "date-time" {
			return at.UTC().Truncate(time.Second).Format(time.RFC3339)
		}
	}
	if s.XIntOrString && s.Pattern != "" {
		if q, err := resource.ParseQuantity(fmt.Sprint(v)); err == nil {
			return q.String()
		}
	}
	return v
}

// pair is the two servers, compared for one kind.
type pair struct {
	definition *apiextensionsv1.CustomResourceDefinition
	version    *apiextensionsv1.CustomResourceDefinitionVersion
	want, got  server
	counts     *comparison
	root       *schema
	n          int
	base       map[string]any
	apart      bool // the two servers' bases differ
}

// generation returns the generation of the object in an answer, or nil.
func generation(of answer) any {
	metadata, _ := of.object["metadata"].(map[string]any)
	return metadata["generation"]
}

// both sends the same request to both servers and compares the answers. The bodies may differ in fields that servers
// set.
func (p *pair) both(t *testing.T, what, method, path, mediaType string, wantBody, gotBody map[string]any) (answer, answer, bool) {
	want, err := p.want.ask(t.Context(), method, path, mediaType, wantBody)
	if err == nil {
		var got answer
		if got, err = p.got.ask(t.Context(), method, path, mediaType, gotBody); err == nil {
			p.apart = p.apart || (want.code < 300) != (got.code < 300) || generation(want) != generation(got)
			return want, got, p.counts.compare(p.definition.Name+" "+what, p.root, want, got)
		}
	}
	t.Errorf("%s: %v", what, err)
	return answer{}, answer{}, false
}

func (p *pair) named(doc map[string]any, name string) map[string]any {
	doc = runtime.DeepCopyJSON(doc)
	doc["apiVersion"], doc["kind"] = p.definition.Spec.Group+"/"+p.version.Name, p.definition.Spec.Names.Kind
	metadata := map[string]any{"name": name}
	if given, ok := doc["metadata"].(map[string]any); ok {
		for _, key := range []string{"labels", "annotations"} {
			if given[key] != nil {
				metadata[key] = given[key]
			}
		}
	}
	doc["metadata"] = metadata
	return doc
}

func withVersion(doc map[string]any, of answer) map[string]any {
	doc = runtime.DeepCopyJSON(doc)
	metadata, _ := of.object["metadata"].(map[string]any)
	doc["metadata"].(map[string]any)["resourceVersion"] = metadata["resourceVersion"]
	return doc
}

const jsonType, applyType = "application/json", "application/apply-patch+yaml"

// object compares the handling of an object: by create, by an apply that creates it, by an update of the base, by an
// apply to the base, and by a write of the status.
func (p *pair) object(t *testing.T, what string, doc map[string]any) (created bool) {
	p.n++
	list := resourcePath(p.definition, p.version, "")
	one := func(name string) string { return list + "/" + name }
	name := "c" + strconv.Itoa(p.n)
	created1 := p.named(doc, name)
	want, got, ok := p.both(t, what+", created", http.MethodPost, list+"?fieldValidation=Strict", jsonType, created1, created1)
	if !ok && want.code == http.StatusBadRequest && got.code == want.code {
		// Strict validation refuses unknown fields; without it, more is compared.
		_, _, ok = p.both(t, what+", created without strict fields", http.MethodPost, list, jsonType, created1, created1)
	}
	created = ok
	if ok {
		p.both(t, what+", read", http.MethodGet, one(name), jsonType, nil, nil)
		p.drop(t, one(name))
	}
	applied := p.named(doc, "a"+strconv.Itoa(p.n))
	if _, _, ok := p.both(
		t,
		what+", applied",
		http.MethodPatch,
		one("a"+strconv.Itoa(p.n))+"?fieldManager=test",
		applyType,
		applied,
		applied,
	); ok {
		p.drop(t, one("a"+strconv.Itoa(p.n)))
	}
	want, err := p.want.ask(t.Context(), http.MethodGet, one("base"), jsonType, nil)
	got, err2 := p.got.ask(t.Context(), http.MethodGet, one("base"), jsonType, nil)
	if err != nil || err2 != nil || want.code != http.StatusOK || got.code != http.StatusOK {
		return created
	}
	based := p.named(doc, "base")
	if p.version.Subresources != nil && p.version.Subresources.Status != nil && strings.HasPrefix(what, ".status") {
		p.both(t, what+", updated as status", http.MethodPut, one("base")+"/status", jsonType, withVersion(based, want), withVersion(based, got))
		p.both(t, what+", applied as status", http.MethodPatch, one("base")+"/status?fieldManager=status&force=true", applyType, based, based)
		return created
	}
	p.both(t, what+", updated", http.MethodPut, one("base"), jsonType, withVersion(based, want), withVersion(based, got))
	p.both(t, what+", applied to another", http.MethodPatch, one("base")+"?fieldManager=other&force=true", applyType, based, based)
	return created
}

// renew creates the base again if the servers' bases differ, so that a difference does not cause further ones.
func (p *pair) renew(t *testing.T) {
	if !p.apart || p.base == nil {
		return
	}
	path := resourcePath(p.definition, p.version, "base")
	p.drop(t, path)
	for _, s := range []server{p.want, p.got} {
		if a, err := s.ask(
			t.Context(),
			http.MethodPost,
			resourcePath(p.definition, p.version, ""),
			jsonType,
			p.base,
		); err != nil ||
			a.code != http.StatusCreated {
			t.Errorf("create %s anew: %d %v %v", path, a.code, a.causes, err)
		}
	}
	p.apart = false
}

func (p *pair) drop(t *testing.T, path string) {
	for _, s := range []server{p.want, p.got} {
		if a, err := s.ask(t.Context(), http.MethodDelete, path, jsonType, nil); err != nil || a.code != http.StatusOK {
			t.Errorf("delete %s: %d %v %v", path, a.code, a.causes, err)
		}
	}
}

// kind compares a kind by its samples and by objects made from its schema: at most limit of them, evenly spread.
func (p *pair) kind(t *testing.T, samples []map[string]any, limit int) {
	bases := []map[string]any{}
	for i, doc := range samples {
		if doc["apiVersion"] == p.definition.Spec.Group+"/"+p.version.Name && doc["kind"] == p.definition.Spec.Names.Kind {
			p.counts.samples++
			if p.object(t, fmt.Sprintf("sample %d", i), doc) {
				bases = append(bases, doc)
			}
		}
	}
	least, _ := object(p.root, false, depth)
	bases = append(bases, least.(map[string]any))
	list := resourcePath(p.definition, p.version, "")
	base := bases[len(bases)-1]
	for _, candidate := range slices.Backward(bases) {
		body := p.named(candidate, "base")
		if _, _, ok := p.both(t, "base", http.MethodPost, list, jsonType, body, body); ok {
			base, p.base = candidate, body
			break
		}
	}
	p.scale(t)
	p.apart = true
	all := mutants(base, p.root)
	step := max(1, (len(all)+limit-1)/limit)
	for i := 0; i < len(all); i += step {
		if deadline, ok := t.Deadline(); ok && time.Until(deadline) < 15*time.Second {
			p.counts.cut = true
			return
		}
		p.renew(t)
		p.object(t, all[i].path+" "+all[i].change, all[i].make())
	}
}

// scale compares the base after updates of its scale.
func (p *pair) scale(t *testing.T) {
	if p.version.Subresources == nil || p.version.Subresources.Scale == nil {
		return
	}
	path := resourcePath(p.definition, p.version, "base")
	p.both(t, "scale, read", http.MethodGet, path+"/scale", jsonType, nil, nil)
	for _, n := range []int64{3, 0, -1} {
		body := map[string]any{
			"apiVersion": "autoscaling/v1",
			"kind":       "Scale",
			"metadata":   map[string]any{"name": "base"},
			"spec":       map[string]any{"replicas": n},
		}
		if p.definition.Spec.Scope == apiextensionsv1.NamespaceScoped {
			body["metadata"].(map[string]any)["namespace"] = "default"
		}
		p.both(t, fmt.Sprintf("scale %d, updated", n), http.MethodPut, path+"/scale", jsonType, body, body)
		p.both(t, fmt.Sprintf("scale %d, read", n), http.MethodGet, path, jsonType, nil, nil)
	}
}

func (c *comparison) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d samples, %d answers compared, %d of them accepted, %d differ", c.samples, c.cases, c.accepted, len(c.unlike))
	if c.cut {
		b.WriteString("; the time was over")
	}
	for _, reason := range slices.Sorted(maps.Keys(c.reasons)) {
		fmt.Fprintf(&b, "; %d because %s", c.reasons[reason], reason)
	}
	return b.String()
}

// compareAll compares all kinds of the definitions in files, whose types are served.
func compareAll(t *testing.T, reference, imported server, files []string, without map[string]bool, samples []map[string]any, limit int) {
	t.Helper()
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		for _, d := range read(t, file) {
			if !without[d.Name] {
				definitions = append(definitions, d)
			}
		}
	}
	counts := &comparison{reasons: map[string]int{}}
	for _, d := range definitions {
		reference.apply(t, d)
		v := storedVersion(d)
		if !v.Served {
			continue
		}
		p := &pair{definition: d, version: v, want: reference, got: imported, counts: counts, root: v.Schema.OpenAPIV3Schema}
		p.kind(t, samples, limit)
	}
	t.Logf("%d definitions: %s", len(definitions), counts)
	shown := 40
	if n, err := strconv.Atoi(os.Getenv("ANNEX_IMPORT_CRDS_SHOW")); err == nil {
		shown = n
	}
	for i, difference := range counts.unlike {
		if i == shown {
			t.Errorf("and %d more", len(counts.unlike)-i)
			break
		}
		t.Error(difference)
	}
}

func read(t *testing.T, file string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	definitions, _, err := gotypes.Read(file, f)
	if none := (*gotypes.NoDefinitionError)(nil); errors.As(err, &none) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return definitions
}

// samplesIn returns the objects in the YAML files below a folder, of any kind.
func samplesIn(t *testing.T, dir string, most int) []map[string]any {
	t.Helper()
	var all []map[string]any
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".yaml") || len(all) >= most {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) > 100_000 {
			return err
		}
		for part := range bytes.SplitSeq(data, []byte("\n---")) {
			doc := map[string]any{}
			if yaml.Unmarshal(part, &doc) != nil || doc["kind"] == nil || doc["kind"] == "CustomResourceDefinition" {
				continue // such as templates
			}
			if doc, ok := whole(doc).(map[string]any); ok {
				all = append(all, doc)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// build compiles the annex command.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "annex")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/annexapi/annex/cmd/annex")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build annex: %v\n%s", err, tail(out))
	}
	return program
}

// TestImportedTypes_constructs compares small definitions, with all constructs that were found in the definitions of
// projects.
func TestImportedTypes_constructs(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles two servers")
	}
	annex := build(t)
	files, err := filepath.Glob("../gotypes/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for i := range files {
		if files[i], err = filepath.Abs(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	imported, without := serve(t, annex, files)
	compareAll(t, start(t, annex), imported, files, without, nil, 400)
}

// TestImportedTypes_projects compares the definitions of projects, fetched as Go modules. ANNEX_IMPORT_CRDS is all,
// names separated by commas, or NAME=PATTERN for local files. All types are in one program. ANNEX_IMPORT_CRDS_LIMIT
// is the number of objects for a kind, ANNEX_IMPORT_CRDS_SHOW the number of differences of a project that are
// printed.
func TestImportedTypes_projects(t *testing.T) {
	asked := os.Getenv("ANNEX_IMPORT_CRDS")
	if asked == "" {
		t.Skip("make import-crds runs it: it fetches the definitions of other projects")
	}
	limit := 100
	if n, err := strconv.Atoi(os.Getenv("ANNEX_IMPORT_CRDS_LIMIT")); err == nil && n > 0 {
		limit = n
	}
	type source struct {
		name, samples string
		files         []string
	}
	var sources []source
	var all []string
	if name, pattern, ok := strings.Cut(asked, "="); ok {
		sources = append(sources, source{name, filepath.Dir(pattern), glob(t, pattern)})
	} else {
		for _, p := range projects {
			if asked != "all" && !slices.Contains(strings.Split(asked, ","), p.name) {
				continue
			}
			dir := moduleDir(t, p.module)
			s := source{name: p.name, samples: dir}
			for _, pattern := range p.files {
				s.files = append(s.files, glob(t, filepath.Join(dir, pattern))...)
			}
			sources = append(sources, s)
		}
	}
	for _, s := range sources {
		all = append(all, s.files...)
	}
	annex := build(t)
	imported, without := serve(t, annex, all)
	reference := start(t, annex)
	for _, s := range sources {
		t.Run(s.name, func(t *testing.T) {
			compareAll(t, reference, imported, s.files, without, samplesIn(t, s.samples, 2000), limit)
		})
	}
}

// glob returns the files of a pattern, which must match at least one.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s matches no file: %v", pattern, err)
	}
	return files
}

// moduleDir returns the folder of a module, which is given as path@version. It downloads the module, but adds no
// requirement to any go.mod.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "PWD=")
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if json.Unmarshal(out, &answer) != nil || answer.Dir == "" {
		t.Fatalf("%s cannot be downloaded: %v %s", module, err, answer.Error)
	}
	return answer.Dir
}
