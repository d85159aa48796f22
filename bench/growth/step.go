package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/go-logr/logr"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/embedded"
)

const (
	// restarted is the axis of processes that only start on the objects of another one.
	restarted = "restarted"
	// each is the number of requests of one measurement, and workers the number of concurrent ones.
	each, workers = 400, 8
	fillers       = 64
	hot           = each // objects that are read again and again
	picked        = 100  // objects with the label of the list by label
	fewObjects    = 1_000
	patience      = 10 * time.Minute
	// A server is at rest if it allocates less than restGarbage in a restPeriod.
	restPeriod, restGarbage = 2 * time.Second, 1 << 20
)

// server is the filled server of a step, and a client of its handler.
type server struct {
	ctx     context.Context
	handler http.Handler
	path    string // of the objects
	version string // their apiVersion
	kind    string
	token   string
	objects int
	made    int // by create
	changes int
}

// serveStep runs the server of a step. It writes its resident memory once it is filled, and then a measurement for each
// line of the input.
func serveStep(ctx context.Context, what string, in io.Reader, out io.Writer) error {
	klog.SetLogger(logr.Discard())
	var name, dir string
	var n int
	if _, err := fmt.Sscan(what, &name, &n, &dir); err != nil {
		return fmt.Errorf("step %q: %w", what, err)
	}
	stepContext, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{
		ctx: stepContext, path: "/apis/shop.example.com/v1/namespaces/default/widgets", version: "shop.example.com/v1", kind: "Widget",
		token: "root", objects: fewObjects,
	}
	ended, err := s.start(dir, name == "kinds" || name == "policies" || name == "matching")
	if err != nil {
		return err
	}
	if err := s.fill(name, n); err != nil {
		return err
	}
	if name != restarted {
		if err := s.rest(); err != nil {
			return err
		}
		debug.FreeOSMemory()
	}
	fmt.Fprintf(out, "%.1f\n", resident())
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		us, err := s.measure(lines.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Fprintf(out, "%.2f\n", us)
	}
	cancel()
	return errors.Join(lines.Err(), <-ended)
}

func (s *server) start(dir string, controlPlane bool) (<-chan error, error) {
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("root,root,1,system:masters\njane,jane,2,\n"), 0o600); err != nil {
		return nil, err
	}
	shop := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	}}}}
	if controlPlane {
		shop.ControlPlane = controlplane.New(controlplane.Options{})
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", TokenAuthFile: tokens}
	instance, err := annex.New(s.ctx, shop, options)
	if err != nil {
		return nil, err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- instance.Run(s.ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		return nil, fmt.Errorf("the server ended before it was ready: %w", err)
	}
	s.handler = instance.Handler()
	return ended, nil
}

// answer is a response. The body is kept if it is an error or if it is asked for.
type answer struct {
	header http.Header
	code   int
	keep   bool
	body   bytes.Buffer
}

func (a *answer) Header() http.Header  { return a.header }
func (a *answer) WriteHeader(code int) { a.code = code }
func (a *answer) Write(data []byte) (int, error) {
	if a.keep || a.code/100 != 2 {
		a.body.Write(data)
	}
	return len(data), nil
}
func (a *answer) Flush() {}

func (s *server) request(token, method, path, contentType string, content []byte) *http.Request {
	target, err := url.Parse(path)
	if err != nil {
		panic(err) // the paths are those below
	}
	r := &http.Request{
		Method: method, URL: target, RequestURI: path, Host: "server", Proto: "HTTP/2.0", ProtoMajor: 2, RemoteAddr: "127.0.0.1:1234",
		Header: http.Header{
			"Authorization": {"Bearer " + token}, "Accept": {"application/json"}, "User-Agent": {"growth"}, "Content-Type": {contentType},
		},
		Body: http.NoBody, ContentLength: int64(len(content)),
	}
	if content != nil {
		r.Body = io.NopCloser(bytes.NewReader(content))
	}
	return r.WithContext(s.ctx)
}

func (s *server) send(r *http.Request) (*answer, error) { return s.sendTo(&answer{}, r) }

func (s *server) sendTo(a *answer, r *http.Request) (*answer, error) {
	a.header, a.code = http.Header{}, http.StatusOK
	if s.handler.ServeHTTP(a, r); a.code/100 != 2 {
		return a, fmt.Errorf("%s %s: %d %s", r.Method, r.RequestURI, a.code, a.body.Bytes())
	}
	return a, nil
}

// must sends a request of the administrator until it succeeds: a namespace or a definition may not be known yet.
func (s *server) must(method, path string, content []byte) error {
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		a, err := s.send(s.request("root", method, path, "application/json", content))
		if err == nil || time.Now().After(until) || s.ctx.Err() != nil || a.code == http.StatusConflict {
			return err
		}
		if a.code != http.StatusNotFound && a.code != http.StatusForbidden && a.code != http.StatusTooManyRequests {
			return err
		}
	}
}

// all calls do for all numbers below n, concurrently.
func all(n, concurrent int, do func(i int) error) error {
	var next atomic.Int64
	failed := make([]error, concurrent)
	var working sync.WaitGroup
	for w := range concurrent {
		working.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if failed[w] = do(i); failed[w] != nil {
					return
				}
			}
		})
	}
	working.Wait()
	return errors.Join(failed...)
}

func nameOf(i int) string { return fmt.Sprintf("w-%07d", i) }

var note = strings.Repeat("some text of the usual length ", 20)

// object returns the i-th object, about a kilobyte when it is stored.
func (s *server) object(name string, i int, pick bool) []byte {
	label := ""
	if pick {
		label = `,"pick":"yes"`
	}
	return fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"app":"web"%s},`+
		`"annotations":{"example.com/sequence":"%08d","example.com/note":%q}},"spec":{"size":"small","replicas":3}}`,
		s.version, s.kind, name, label, i, note)
}

// fill makes the n things of the axis, and the objects of the requests.
func (s *server) fill(axis string, n int) error {
	switch axis {
	case restarted:
		_, err := s.send(s.request(s.token, http.MethodGet, s.path+"?limit=500", "", nil))
		return err
	case "objects":
		s.objects = n
	case "kinds":
		if err := all(n, 8, s.define); err != nil {
			return err
		}
		s.path, s.version, s.kind = "/apis/things.example.com/v1/namespaces/default/things0s", "things.example.com/v1", "Thing0"
	case "namespaces":
		if err := all(n-1, fillers, s.namespace); err != nil {
			return err
		}
	case "bindings":
		if err := s.bindings(n); err != nil {
			return err
		}
	case "policies":
		if err := all(n, 8, func(i int) error { return errors.Join(s.policy(i, "shelves"), s.webhook(i)) }); err != nil {
			return err
		}
	case "matching":
		if err := all(n, 8, func(i int) error { return s.policy(i, "widgets") }); err != nil {
			return err
		}
	default:
		return fmt.Errorf("there is no axis %q", axis)
	}
	if err := all(s.objects, fillers, func(i int) error {
		return s.must(http.MethodPost, s.path, s.object(nameOf(i), i, i%(s.objects/picked) == 0))
	}); err != nil {
		return err
	}
	if axis == "matching" {
		return s.until(n)
	}
	return nil
}

// until waits until a write meets all n policies, which the server learns by a watch.
func (s *server) until(n int) error {
	probe := bytes.Replace(s.object("refused", 0, false), []byte(`"replicas":3`), []byte(`"replicas":4000`), 1)
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		a, err := s.send(s.request("root", http.MethodPost, s.path, "application/json", probe))
		switch {
		case err == nil:
			if err := s.must(http.MethodDelete, s.path+"/refused", nil); err != nil {
				return err
			}
		case bytes.Count(a.body.Bytes(), []byte("ValidatingAdmissionPolicy")) >= 1:
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%d policies are not in force: %w", n, err)
		}
	}
}

// rest waits until the server is at rest. What it does on its own after it has been filled is not the work of a request:
// it publishes a thousand definitions and begins to follow their objects for a quarter of a minute after the last of
// them can be used.
func (s *server) rest() error {
	for until, before := time.Now().Add(patience), allocated(); ; {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-time.After(restPeriod):
		}
		now := allocated()
		if now-before < restGarbage {
			return nil
		}
		if before = now; time.Now().After(until) {
			return fmt.Errorf("the server is not at rest %s after it was filled", patience)
		}
	}
}

func (s *server) define(i int) error {
	return s.must(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Appendf(nil,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things%[1]ds.things.example.com"},
		"spec":{"group":"things.example.com","scope":"Namespaced","names":{"plural":"things%[1]ds","singular":"thing%[1]d","kind":"Thing%[1]d"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
		"properties":{"size":{"type":"string"},"replicas":{"type":"integer"}}}}}}}]}}`, i))
}

func (s *server) namespace(i int) error {
	name := fmt.Sprintf("other-%05d", i)
	if err := s.must(http.MethodPost, "/api/v1/namespaces", fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)); err != nil {
		return err
	}
	return s.must(http.MethodPost, strings.Replace(s.path, "/default/", "/"+name+"/", 1), s.object("only", i, false))
}

// bindings makes n bindings. The last one is jane's, who then makes the requests.
func (s *server) bindings(n int) error {
	const group = "/apis/rbac.authorization.k8s.io/v1"
	if err := s.must(http.MethodPost, group+"/clusterroles", []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole",
		"metadata":{"name":"widgets"},"rules":[{"apiGroups":["shop.example.com"],"resources":["widgets"],"verbs":["*"]}]}`)); err != nil {
		return err
	}
	bind := func(path, kind, name, user string) error {
		return s.must(http.MethodPost, group+path, fmt.Appendf(nil,
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},`+
				`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"widgets"},`+
				`"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":%q}]}`, kind, name, user))
	}
	if err := all(n-1, 8, func(i int) error {
		name := fmt.Sprintf("other-%04d", i)
		if i%2 == 0 {
			return bind("/clusterrolebindings", "ClusterRoleBinding", name, name)
		}
		return bind("/namespaces/default/rolebindings", "RoleBinding", name, name)
	}); err != nil {
		return err
	}
	if err := bind("/namespaces/default/rolebindings", "RoleBinding", "zz-jane", "jane"); err != nil {
		return err
	}
	s.token = "jane"
	var err error
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if _, err = s.send(s.request(s.token, http.MethodGet, s.path, "", nil)); err == nil {
			return nil
		}
	}
	return err
}

func (s *server) policy(i int, resource string) error {
	const group = "/apis/admissionregistration.k8s.io/v1"
	name := fmt.Sprintf("policy-%03d", i)
	field := "object.spec.replicas < 1000"
	if resource != "widgets" {
		field = "object.metadata.name != 'none'"
	}
	return errors.Join(
		s.must(http.MethodPost, group+"/validatingadmissionpolicies", fmt.Appendf(nil, `{"apiVersion":"admissionregistration.k8s.io/v1",
			"kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{
			"apiGroups":["shop.example.com"],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":[%q]}]},
			"validations":[{"expression":%q}]}}`, name, resource, field)),
		s.must(http.MethodPost, group+"/validatingadmissionpolicybindings", fmt.Appendf(nil, `{"apiVersion":"admissionregistration.k8s.io/v1",
			"kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%[1]q},"spec":{"policyName":%[1]q,"validationActions":["Deny"]}}`, name)),
	)
}

// webhook makes a webhook that no request calls.
func (s *server) webhook(i int) error {
	return s.must(http.MethodPost, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Appendf(nil,
		`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"hook-%03[1]d"},
		"webhooks":[{"name":"hook%[1]d.example.com","clientConfig":{"url":"https://127.0.0.1:9/"},"sideEffects":"None",
		"admissionReviewVersions":["v1"],
		"rules":[{"apiGroups":["shop.example.com"],"apiVersions":["v1"],"operations":["*"],"resources":["shelves"]}]}]}`, i))
}

// measure returns the microseconds of processor time of an operation. A collection costs as much as hundreds of requests
// in a process that holds much, and is due about once a round, always in the same operation. So none is made meanwhile,
// and each request is charged with its part of one.
func (s *server) measure(operation string) (float64, error) {
	if operation == "processor" {
		used, err := processorTime()
		return float64(used.Microseconds()), err
	}
	count, make, err := s.requests(operation)
	if err != nil {
		return 0, err
	}
	requests := []*http.Request{}
	for i := range count {
		r, err := make(i)
		if err != nil {
			return 0, err
		}
		requests = append(requests, r)
	}
	charge, err := collect()
	if err != nil {
		return 0, err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	garbage := allocated()
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	if err := all(count, workers, func(i int) error {
		_, err := s.send(requests[i])
		return err
	}); err != nil {
		return 0, err
	}
	after, err := processorTime()
	used := after - before + charge.of(allocated()-garbage)
	return float64(used.Microseconds()) / float64(count), err
}

// collection is what a collection costs, and after how many allocated bytes the next one is due.
type collection struct {
	cost  time.Duration
	every uint64
}

// collect makes a collection.
func collect() (collection, error) {
	before, err := processorTime()
	if err != nil {
		return collection{}, err
	}
	runtime.GC()
	after, err := processorTime()
	return collection{after - before, value("/gc/heap/goal:bytes") - value("/gc/heap/live:bytes")}, err
}

// of returns the part of a collection that is due to allocated bytes.
func (c collection) of(bytes uint64) time.Duration {
	return time.Duration(float64(c.cost) * float64(bytes) / float64(c.every))
}

// allocated returns the bytes that this process has allocated since it began.
func allocated() uint64 { return value("/gc/heap/allocs:bytes") }

// value returns a figure of the runtime.
func value(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// requests returns how the requests of an operation are made.
func (s *server) requests(operation string) (count int, make func(i int) (*http.Request, error), err error) {
	request := func(method, path, contentType string, content []byte) (*http.Request, error) {
		return s.request(s.token, method, path, contentType, content), nil
	}
	read := func(path func(i int) string) func(i int) (*http.Request, error) {
		return func(i int) (*http.Request, error) { return request(http.MethodGet, path(i), "", nil) }
	}
	// The hot objects are spread over all.
	at := func(i int) string { return s.path + "/" + nameOf(i%hot*(s.objects/hot)) }
	fresh := func(i int) string { return fmt.Sprintf("fresh-%07d", s.made*each+i) }
	s.changes++
	change := s.changes
	switch operation {
	case "create":
		s.made++
		return each, func(i int) (*http.Request, error) {
			return request(http.MethodPost, s.path, "application/json", s.object(fresh(i), i, false))
		}, nil
	case "get":
		return each, read(at), nil
	case "get of any":
		return each, read(func(int) string { return s.path + "/" + nameOf(rand.IntN(s.objects)) }), nil
	case "list of 100":
		return each, read(func(int) string { return s.path + "?limit=100" }), nil
	case "list by label":
		return each, read(func(int) string { return s.path + "?labelSelector=pick%3Dyes" }), nil
	case "merge patch":
		return each, func(i int) (*http.Request, error) {
			return request(http.MethodPatch, at(i), "application/merge-patch+json",
				fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/sequence":"%08d"}}}`, change))
		}, nil
	case "update":
		return each, func(i int) (*http.Request, error) { return s.updated(at(i), change) }, nil
	case "delete":
		return each, func(i int) (*http.Request, error) { return request(http.MethodDelete, s.path+"/"+fresh(i), "", nil) }, nil
	}
	return 0, nil, fmt.Errorf("there is no operation %q", operation)
}

// updated returns the update of an object, with its resource version.
func (s *server) updated(path string, change int) (*http.Request, error) {
	a, err := s.sendTo(&answer{keep: true}, s.request(s.token, http.MethodGet, path, "", nil))
	if err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := json.Unmarshal(a.body.Bytes(), &object); err != nil {
		return nil, err
	}
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	annotations["example.com/sequence"] = fmt.Sprintf("%08d", change)
	content, err := json.Marshal(object)
	return s.request(s.token, http.MethodPut, path, "application/json", content), err
}

// processorTime returns the processor time of this process.
func processorTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, err
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// resident returns the resident memory of this process in MB.
func resident() float64 {
	var kilobytes float64
	if _, err := fmt.Sscanf(valueIn("/proc/self/status", "VmRSS"), "%f", &kilobytes); err != nil {
		return 0
	}
	return kilobytes / 1024
}

// valueIn returns the first value of a key in one of Linux's tables.
func valueIn(path, key string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
