package kinds

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/annexapi/annex/e2e/cluster/compare"
	"github.com/annexapi/annex/e2e/cluster/kube"
)

// kind is a resource that can be created, in one version.
type kind struct {
	group, version, resource, kind string
	namespaced                     bool
	verbs, subresources            []string
}

// String returns the name in reports.
func (k kind) String() string {
	return strings.TrimPrefix(k.group+"/"+k.version, "/") + " " + k.resource
}

// namespace returns the namespace of the kind's objects. Limits and quotas would change objects beside them.
func (k kind) namespace() string {
	switch k.resource {
	case "limitranges", "resourcequotas":
		return k.resource
	}
	return "default"
}

// path returns the path of the kind's objects.
func (k kind) path() string {
	p := "/apis/" + k.group + "/" + k.version
	if k.group == "" {
		p = "/api/" + k.version
	}
	if k.namespaced {
		p += "/namespaces/" + k.namespace()
	}
	return p + "/" + k.resource
}

// harmless reports whether changed objects of the kind change no answer for others, and no controller of the server writes them.
func (k kind) harmless() bool {
	return !slices.Contains([]string{
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "flowcontrol.apiserver.k8s.io", "networking.k8s.io",
	}, k.group) && !slices.Contains([]string{"namespaces", "priorityclasses", "limitranges", "resourcequotas", "storageclasses", "services"}, k.resource)
}

// kindsOf returns the kinds that a server lists in discovery.
func kindsOf(t *testing.T, s *compare.Server) []kind {
	t.Helper()
	get := func(path string) map[string]any {
		a, err := s.Ask(t.Context(), http.MethodGet, path, compare.JSON, nil)
		if err != nil || a.Code != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, a.Code, err)
		}
		return a.Body
	}
	versions := []string{"/v1"}
	for _, group := range list(get("/apis")["groups"]) {
		for _, v := range list(object(group)["versions"]) {
			versions = append(versions, text(object(v)["groupVersion"]))
		}
	}
	var all []kind
	for _, gv := range versions {
		group, version, _ := strings.Cut(gv, "/")
		path := "/apis/" + gv
		if group == "" {
			path = "/api" + gv
		}
		resources := list(get(path)["resources"])
		for _, r := range resources {
			name := text(object(r)["name"])
			k := kind{group: group, version: version, resource: name, kind: text(object(r)["kind"])}
			k.namespaced, _ = object(r)["namespaced"].(bool)
			for _, verb := range list(object(r)["verbs"]) {
				k.verbs = append(k.verbs, text(verb))
			}
			if strings.Contains(name, "/") || !slices.Contains(k.verbs, "create") {
				continue
			}
			for _, other := range resources {
				if sub, ok := strings.CutPrefix(text(object(other)["name"]), name+"/"); ok {
					k.subresources = append(k.subresources, sub)
				}
			}
			all = append(all, k)
		}
	}
	return all
}

// minimal returns the objects of testdata/minimal.yaml by apiVersion and kind.
func minimal(t *testing.T) map[string][]map[string]any {
	t.Helper()
	raw, err := os.ReadFile("testdata/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "amy"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	empty, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := kube.NewAuthority("ca")
	if err != nil {
		t.Fatal(err)
	}
	inPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	quoted, err := json.Marshal(string(ca.PEM()))
	if err != nil {
		t.Fatal(err)
	}
	raw = []byte(strings.NewReplacer("${csr}", base64.StdEncoding.EncodeToString(inPEM), `"${ca}"`, string(quoted),
		"${der}", base64.StdEncoding.EncodeToString(empty)).Replace(string(raw)))
	all := map[string][]map[string]any{}
	for _, doc := range documents(t, "minimal.yaml", raw) {
		of := text(doc["apiVersion"]) + " " + text(doc["kind"])
		all[of] = append(all[of], doc)
	}
	return all
}

func documents(t *testing.T, name string, raw []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096); ; {
		var doc map[string]any
		switch err := decoder.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, compare.Clone(doc))
	}
}

// builtinSamples returns objects of the test beside this one by apiVersion and kind.
func builtinSamples(t *testing.T) map[string][]map[string]any {
	t.Helper()
	files, err := filepath.Glob("../builtin/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	all := map[string][]map[string]any{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range documents(t, file, raw) {
			of := text(doc["apiVersion"]) + " " + text(doc["kind"])
			all[of] = append(all[of], doc)
		}
	}
	return all
}

func nameOf(doc map[string]any) string { return text(object(doc["metadata"])["name"]) }

func number(t *testing.T, variable string, usual uint64) uint64 {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		return usual
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

const usualSeed = 1

// Both servers answer every request about every kind alike. Each kind has a minimal object, and larger ones that are generated from
// its schema and that the real server accepts. Each field of them is changed in turn, in every way to write an object.
func TestKinds_everyChange(t *testing.T) {
	seed, limit := number(t, "ANNEX_KINDS_SEED", usualSeed), number(t, "ANNEX_KINDS_CHANGES", 6)
	only := regexp.MustCompile(os.Getenv("ANNEX_KINDS_ONLY"))
	t.Logf("seed: ANNEX_KINDS_SEED=%d, at most ANNEX_KINDS_CHANGES=%d changes of each object", seed, limit)
	s, smallest, more := start(t), minimal(t), builtinSamples(t)
	s.prepare(t)
	known := readKnown(t)
	var total report
	for _, k := range kindsOf(t, s.theirs) {
		if !only.MatchString(k.String()) {
			continue
		}
		t.Run(k.String(), func(t *testing.T) {
			r := &run{t: t, servers: s, kind: k, limit: int(limit), known: known, codes: map[int]int{}, shown: map[string]int{}}
			r.random = random{mathrand.New(mathrand.NewPCG(seed, hash(k.String())))}
			of := strings.TrimPrefix(k.group+"/"+k.version, "/") + " " + k.kind
			if len(smallest[of]) == 0 {
				t.Fatalf("testdata/minimal.yaml has no %s", of)
			}
			r.all(smallest[of], more[of])
			total.add(k.String(), r)
		})
	}
	total.print()
	if seed == usualSeed && os.Getenv("ANNEX_KINDS_CHANGES") == "" && only.String() == "" {
		known.checkUsed(t, "kinds")
	}
}

// prepare creates the namespaces of kinds that have their own, and a pod to bind.
func (s servers) prepare(t *testing.T) {
	t.Helper()
	type doc = map[string]any
	var all []request
	for _, name := range []string{"limitranges", "resourcequotas"} {
		namespace := doc{"apiVersion": "v1", "kind": "Namespace", "metadata": doc{"name": name}}
		all = append(all, to("namespace "+name, http.MethodPost, "/api/v1/namespaces", compare.JSON, namespace))
	}
	containers := []any{doc{"name": "a", "image": "a"}}
	pod := doc{"apiVersion": "v1", "kind": "Pod", "metadata": doc{"name": "a"}, "spec": doc{"containers": containers}}
	all = append(all, to("pod a", http.MethodPost, "/api/v1/namespaces/default/pods", compare.JSON, pod))
	for _, r := range all {
		theirs, ours, err := s.ask(t.Context(), r)
		if err != nil || theirs.Code != http.StatusCreated || ours.Code != http.StatusCreated {
			t.Fatalf("%s: %d, %d, %v", r, theirs.Code, ours.Code, err)
		}
	}
}

func hash(name string) uint64 {
	var h uint64 = 14695981039346656037
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// run is the comparison of one kind.
type run struct {
	random
	servers
	t     *testing.T
	kind  kind
	limit int
	known *known

	// conditional kinds take updates with a resource version alone.
	conditional bool

	objects, requests, differ, listed int
	codes                             map[int]int
	shown                             map[string]int
}

// same sends a request to both servers and reports a difference that is not known. It returns the answer of the real one.
func (r *run) same(req request) compare.Answer {
	r.t.Helper()
	if r.conditional && req.method == http.MethodPut {
		req = r.versioned(req)
	}
	theirs, ours, err := r.ask(r.t.Context(), req)
	if err != nil {
		r.t.Errorf("%s: %v", req, err)
		return theirs
	}
	r.requests++
	r.codes[theirs.Code]++
	kept := theirs
	kept.Body = compare.Clone(theirs.Body)
	r.compare(req, theirs, ours)
	return kept
}

// versioned returns an update with the resource version that each server has.
func (r *run) versioned(req request) request {
	path, _, _ := strings.Cut(req.path, "?")
	theirs, ours, err := r.ask(r.t.Context(), to("version", http.MethodGet, path, compare.JSON, nil))
	doc := object(req.body)
	if err != nil || theirs.Code != http.StatusOK || ours.Code != http.StatusOK || object(doc["metadata"]) == nil {
		return req
	}
	with := func(a compare.Answer) any {
		copied := compare.Clone(doc)
		object(copied["metadata"])["resourceVersion"] = object(a.Body["metadata"])["resourceVersion"]
		return copied
	}
	req.body, req.ours = with(theirs), with(ours)
	return req
}

func (r *run) compare(req request, theirs, ours compare.Answer) {
	r.t.Helper()
	x, y := theirs.Plain(), ours.Plain()
	if x == y {
		return
	}
	difference := compare.Difference(x, y)
	if r.known.has(r.kind.String(), req.what, difference) {
		r.listed++
		return
	}
	r.differ++
	signature := strings.Fields(req.what)[0] + digits.ReplaceAllString(difference, "N")
	if r.shown[signature]++; r.shown[signature] > 1 || len(r.shown) > 25 {
		r.t.Fail()
		return
	}
	sent, err := json.Marshal(req.body)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Errorf("%s\n%.1200s\n%.3000s", req, sent, difference)
}

var digits = regexp.MustCompile(`\d+|"[^"]*"`)

// settled sends a request that reads until both servers answer alike, because controllers inside them may still write.
func (r *run) settled(req request) compare.Answer {
	r.t.Helper()
	var theirs, ours compare.Answer
	_ = wait.PollUntilContextTimeout(r.t.Context(), 50*time.Millisecond, 3*time.Second, true, func(ctx context.Context) (bool, error) {
		a, b, err := r.ask(ctx, req)
		if err != nil {
			return false, err
		}
		theirs, ours = a, b
		x, y := theirs, ours
		x.Body, y.Body = compare.Clone(theirs.Body), compare.Clone(ours.Body)
		return x.Plain() == y.Plain(), nil
	}) // the comparison below fails if they stay different
	r.requests++
	r.codes[theirs.Code]++
	kept := theirs
	kept.Body = compare.Clone(theirs.Body)
	r.compare(req, theirs, ours)
	return kept
}

const dry, manager = "?dryRun=All&fieldManager=test", "?fieldManager=test"

// all compares a kind with its samples.
func (r *run) all(smallest, more []map[string]any) {
	samples := []map[string]any{smallest[0]}
	base := smallest[len(smallest)-1]
	for i, sparse := range []float64{0, 0.5} {
		from := compare.Clone(base)
		if len(smallest) == 1 && nameOf(from) != "" && r.kind.resource != "bindings" {
			object(from["metadata"])["name"] = fmt.Sprintf("max%d", i)
		} else if i > 0 && nameOf(from) != "" {
			continue
		}
		doc, err := r.generate(from, sparse)
		if err != nil {
			r.t.Errorf("maximal object %d: %v", i, err)
			continue
		}
		samples = append(samples, doc)
	}
	samples = append(samples, more...)
	for _, doc := range samples {
		if r.kind.namespaced {
			object(doc["metadata"])["namespace"] = r.kind.namespace()
		}
		r.objects++
		r.creates(doc)
		if slices.Contains(r.kind.verbs, "update") {
			r.lives(doc)
		}
	}
	if slices.Contains(r.kind.verbs, "list") {
		r.same(to("selected by an unknown field", http.MethodGet, r.kind.path()+"?fieldSelector=spec.nowhere%3Da", compare.JSON, nil))
		r.same(to("selected by name", http.MethodGet, r.kind.path()+"?fieldSelector=metadata.name%3Dmin", compare.JSON, nil))
	}
	r.t.Logf("%s: %d objects, %d requests, by code %v, %d differ, %d differ as listed",
		r.kind, r.objects, r.requests, r.codes, r.differ, r.listed)
}

// generate returns a large object that the real server accepts.
func (r *run) generate(base map[string]any, sparse float64) (map[string]any, error) {
	path := "/openapi/v3/apis/" + r.kind.group + "/" + r.kind.version
	if r.kind.group == "" {
		path = "/openapi/v3/api/" + r.kind.version
	}
	a, err := r.theirs.Ask(r.t.Context(), http.MethodGet, path, compare.JSON, nil)
	if err != nil {
		return nil, err
	}
	g := generator{r.random, object(object(a.Body["components"])["schemas"]), sparse}
	schema, err := g.schema(r.kind.group, r.kind.version, r.kind.kind)
	if err != nil {
		return nil, err
	}
	doc := compare.Clone(base)
	g.fill(doc, schema, nil, nil)
	metadata := object(doc["metadata"])
	if _, ok := metadata["labels"]; !ok && nameOf(doc) != "" {
		metadata["labels"], metadata["annotations"] = map[string]any{"app": "a"}, map[string]any{"a": "b"}
	}
	return r.repair(r.t.Context(), compare.Clone(doc), base, func(ctx context.Context, doc map[string]any) (compare.Answer, error) {
		return r.theirs.Ask(ctx, http.MethodPost, r.kind.path()+dry, compare.JSON, doc)
	})
}

// some returns a random part of the changes of an object.
func (r *run) some(doc map[string]any, of func(path) bool) []change {
	all := slices.DeleteFunc(r.changes(doc), func(c change) bool { return of != nil && !of(c.at) })
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(r.limit, len(all))]
}

func isStatus(at path) bool { return at[0] == "status" }

// creates sends changed objects as creates.
func (r *run) creates(doc map[string]any) {
	name := nameOf(doc)
	r.same(to("create dry "+name, http.MethodPost, r.kind.path()+dry, compare.JSON, doc))
	for i, c := range r.some(doc, func(at path) bool { return !isStatus(at) }) {
		a := r.same(to(fmt.Sprintf("create dry %s: %s", name, c), http.MethodPost, r.kind.path()+dry, compare.JSON, c.doc))
		if i%8 == 0 && a.Code == http.StatusCreated && r.kind.harmless() && slices.Contains(r.kind.verbs, "delete") {
			r.same(to(fmt.Sprintf("create %s: %s", name, c), http.MethodPost, r.kind.path()+manager, compare.JSON, c.doc))
			r.same(to(fmt.Sprintf("read %s: %s", name, c), http.MethodGet, r.kind.path()+"/"+name, compare.JSON, nil))
			r.remove(name)
		}
	}
}

// remove deletes an object in spite of its finalizers.
func (r *run) remove(name string) {
	at := r.kind.path() + "/" + name
	r.same(to("delete "+name, http.MethodDelete, at+"?gracePeriodSeconds=0&propagationPolicy=Background", compare.JSON, nil))
	a := r.settled(to("read deleted "+name, http.MethodGet, at, compare.JSON, nil))
	if a.Code == http.StatusOK && r.kind.group != "apiextensions.k8s.io" { // whose finalizer a controller of the server removes
		without := map[string]any{"metadata": map[string]any{"finalizers": nil}}
		r.same(to("release "+name, http.MethodPatch, at+manager, compare.Merge, without))
	}
}

// lives creates an object, changes it in every way, and deletes it.
func (r *run) lives(doc map[string]any) {
	name := nameOf(doc)
	at := r.kind.path() + "/" + name
	if a := r.same(to("create "+name, http.MethodPost, r.kind.path()+manager, compare.JSON, doc)); a.Code != http.StatusCreated {
		r.t.Errorf("the real server refuses %s: %d %s", name, a.Code, text(a.Body["message"]))
		return
	}
	r.settled(to("read "+name, http.MethodGet, at, compare.JSON, nil))
	r.same(to("create again "+name, http.MethodPost, r.kind.path()+manager, compare.JSON, doc))
	r.settled(to("table "+name, http.MethodGet, at, compare.Table, nil))
	again := r.same(to("update same "+name, http.MethodPut, at+manager, compare.JSON, doc))
	r.conditional = strings.Contains(text(again.Body["message"]), "metadata.resourceVersion")
	for i, c := range r.some(doc, func(at path) bool { return !isStatus(at) }) {
		r.writes(at, name, c, i%8 == 0 && r.kind.harmless(), doc)
	}
	if slices.Contains(r.kind.subresources, "status") {
		r.statuses(at, name)
	}
	for _, sub := range r.kind.subresources {
		r.subresource(at, name, sub)
	}
	r.settled(to("table of all "+name, http.MethodGet, r.kind.path()+"/"+name, compare.Table, nil))
	r.same(to("delete dry "+name, http.MethodDelete, at+"?dryRun=All", compare.JSON, nil))
	r.remove(name)
}

// writes sends a change of an existing object as an update, as patches and as an apply, and really if it should.
func (r *run) writes(at, name string, c change, really bool, doc map[string]any) {
	what := func(verb string) string { return fmt.Sprintf("%s %s: %s", verb, name, c) }
	r.same(to(what("update"), http.MethodPut, at+dry, compare.JSON, c.doc))
	r.same(to(what("merge"), http.MethodPatch, at+dry, compare.Merge, c.patch()))
	r.same(to(what("strategic"), http.MethodPatch, at+dry, "application/strategic-merge-patch+json", c.patch()))
	r.same(to(what("jsonpatch"), http.MethodPatch, at+dry, "application/json-patch+json", c.operations()))
	r.same(to(what("apply"), http.MethodPatch, at+"?dryRun=All&fieldManager=applier&force=true", compare.Apply, c.doc))
	if !really {
		return
	}
	r.same(to(what("write"), http.MethodPut, at+manager, compare.JSON, c.doc))
	r.same(to(what("read"), http.MethodGet, at, compare.JSON, nil))
	r.same(to(what("restore"), http.MethodPut, at+manager, compare.JSON, doc))
}

// statuses gives an object a large status, and changes it in every way.
func (r *run) statuses(at, name string) {
	stored, err := r.theirs.Ask(r.t.Context(), http.MethodGet, at, compare.JSON, nil)
	if err != nil || stored.Code != http.StatusOK {
		r.t.Errorf("read %s: %d %v", name, stored.Code, err)
		return
	}
	base := stored.Body
	for _, field := range []string{"managedFields", "uid", "resourceVersion", "creationTimestamp", "generation"} {
		delete(object(base["metadata"]), field)
	}
	for _, label := range []string{"controller-uid", "batch.kubernetes.io/controller-uid"} { // of a Job
		delete(object(object(base["metadata"])["labels"]), label)
	}
	if object(base["status"]) == nil || !r.kind.harmless() { // else each server has written times of its own
		base["status"] = map[string]any{}
	}
	doc, err := r.generateStatus(at, compare.Clone(base))
	if err != nil {
		r.t.Errorf("status of %s: %v", name, err)
		return
	}
	r.same(to("status update "+name, http.MethodPut, at+"/status"+manager, compare.JSON, doc))
	r.settled(to("status read "+name, http.MethodGet, at+"/status", compare.JSON, nil))
	changes := r.some(doc, isStatus)
	few := r.limit
	r.limit = few / 4
	changes = append(changes, r.some(doc, func(at path) bool { return !isStatus(at) })...)
	r.limit = few
	for _, c := range changes {
		what := func(verb string) string { return fmt.Sprintf("status %s %s: %s", verb, name, c) }
		r.same(to(what("update"), http.MethodPut, at+"/status"+dry, compare.JSON, c.doc))
		r.same(to(what("merge"), http.MethodPatch, at+"/status"+dry, compare.Merge, c.patch()))
		r.same(to(what("jsonpatch"), http.MethodPatch, at+"/status"+dry, "application/json-patch+json", c.operations()))
		r.same(to(what("apply"), http.MethodPatch, at+"/status?dryRun=All&fieldManager=applier&force=true", compare.Apply, c.doc))
		r.same(to(what("main"), http.MethodPatch, at+dry, compare.Merge, c.patch()))
	}
}

// generateStatus returns an object with a large status that the real server accepts.
func (r *run) generateStatus(at string, base map[string]any) (map[string]any, error) {
	path := "/openapi/v3/apis/" + r.kind.group + "/" + r.kind.version
	if r.kind.group == "" {
		path = "/openapi/v3/api/" + r.kind.version
	}
	a, err := r.theirs.Ask(r.t.Context(), http.MethodGet, path, compare.JSON, nil)
	if err != nil {
		return nil, err
	}
	g := generator{r.random, object(object(a.Body["components"])["schemas"]), 0.1}
	schema, err := g.schema(r.kind.group, r.kind.version, r.kind.kind)
	if err != nil {
		return nil, err
	}
	status, ref := g.resolve(object(object(schema["properties"])["status"]))
	doc := compare.Clone(base)
	g.fill(object(doc["status"]), status, []any{"status"}, []string{ref})
	return r.repair(r.t.Context(), compare.Clone(doc), base, func(ctx context.Context, doc map[string]any) (compare.Answer, error) {
		return r.theirs.Ask(ctx, http.MethodPatch, at+"/status"+dry, compare.Merge, map[string]any{"status": doc["status"]})
	})
}

// subresource sends the bodies of a subresource other than status, and changes of them.
func (r *run) subresource(at, name, sub string) {
	path := at + "/" + sub
	post := func(doc map[string]any) {
		r.same(to(sub+" "+name, http.MethodPost, path+dry, compare.JSON, doc))
		for _, c := range r.some(doc, nil) {
			r.same(to(fmt.Sprintf("%s %s: %s", sub, name, c), http.MethodPost, path+dry, compare.JSON, c.doc))
		}
	}
	metadata := map[string]any{"name": name, "namespace": r.kind.namespace()}
	switch sub {
	case "scale", "ephemeralcontainers", "resize", "approval":
		r.same(to(sub+" read "+name, http.MethodGet, path, compare.JSON, nil))
		stored, err := r.theirs.Ask(r.t.Context(), http.MethodGet, path, compare.JSON, nil)
		if err != nil || stored.Code != http.StatusOK {
			r.t.Errorf("read %s of %s: %d %v", sub, name, stored.Code, err)
			return
		}
		doc := stored.Body
		for _, field := range []string{"managedFields", "uid", "resourceVersion", "creationTimestamp", "generation"} {
			delete(object(doc["metadata"]), field)
		}
		switch sub {
		case "ephemeralcontainers":
			object(doc["spec"])["ephemeralContainers"] = []any{map[string]any{"name": "debug", "image": "a"}}
		case "approval":
			object(doc["status"])["conditions"] = []any{map[string]any{"type": "Approved", "status": "True", "reason": "a", "message": "b"}}
		case "scale":
			object(doc["spec"])["replicas"] = 3.0
		}
		r.same(to(sub+" update "+name, http.MethodPut, path+dry, compare.JSON, doc))
		for _, c := range r.some(doc, nil) {
			what := func(verb string) string { return fmt.Sprintf("%s %s %s: %s", sub, verb, name, c) }
			r.same(to(what("update"), http.MethodPut, path+dry, compare.JSON, c.doc))
			r.same(to(what("merge"), http.MethodPatch, path+dry, compare.Merge, c.patch()))
			r.same(to(what("strategic"), http.MethodPatch, path+dry, "application/strategic-merge-patch+json", c.patch()))
			r.same(to(what("apply"), http.MethodPatch, path+"?dryRun=All&fieldManager=applier&force=true", compare.Apply, c.doc))
		}
	case "eviction":
		post(map[string]any{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata,
			"deleteOptions": map[string]any{"gracePeriodSeconds": 0.0, "propagationPolicy": "Background"}})
	case "binding":
		post(map[string]any{"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": map[string]any{"kind": "Node", "name": "a"}})
	case "token":
		post(map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
			"spec": map[string]any{"audiences": []any{"a"}, "expirationSeconds": 3600.0}})
	case "log", "exec", "attach", "portforward", "proxy":
		if r.kind.resource != "nodes" { // a kube-apiserver looks for the node in the network
			r.same(to(sub+" "+name, http.MethodGet, path, compare.JSON, nil))
		}
	case "finalize":
		doc := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"finalizers": []any{"kubernetes", "example.com/a"}}}
		r.same(to(sub+" "+name, http.MethodPut, path+dry, compare.JSON, doc))
		for _, c := range r.some(doc, nil) {
			r.same(to(fmt.Sprintf("%s %s: %s", sub, name, c), http.MethodPut, path+dry, compare.JSON, c.doc))
		}
	}
}

// report has a line for each kind.
type report struct {
	lines                                    []string
	objects, requests, differ, listed, kinds int
}

func (r *report) add(name string, of *run) {
	codes := ""
	for _, code := range slices.Sorted(maps.Keys(of.codes)) {
		codes += fmt.Sprintf(" %d: %d", code, of.codes[code])
	}
	r.lines = append(r.lines, fmt.Sprintf("| %s | %d | %d |%s | %d | %d |", name, of.objects, of.requests, codes, of.differ, of.listed))
	r.objects, r.requests, r.differ, r.listed, r.kinds =
		r.objects+of.objects, r.requests+of.requests, r.differ+of.differ, r.listed+of.listed, r.kinds+1
}

func (r *report) print() {
	fmt.Println("kinds: | kind | objects | requests | by code | differ | differ as listed |")
	fmt.Println("kinds: |---|---:|---:|---|---:|---:|")
	for _, line := range r.lines {
		fmt.Println("kinds: " + line)
	}
	fmt.Printf("kinds: | all %d | %d | %d | | %d | %d |\n", r.kinds, r.objects, r.requests, r.differ, r.listed)
}
