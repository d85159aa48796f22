package annextest

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Faults answers some requests of the code under test as a server in trouble does: with conflicts, with 429 and 500,
// late, never, or with an old object.
//
//	var faults annextest.Faults
//	faults.On(t, "update", "flunders").First(2).Conflict()
//	manager, err := ctrl.NewManager(faults.Wrap(config), ctrl.Options{})
//
// The requests of clients that are made of the configuration which Wrap returns may meet faults; requests of other
// clients never do. The server does not matter: faults happen in the client, in front of any server.
//
// The zero value has no faults. All methods may be called concurrently.
type Faults struct {
	// Seed decides which requests Chance selects; 0 means 1. One seed selects the same requests of each object, whatever
	// the order of requests for different objects is. It is logged when a test fails, and must not be changed once On has
	// been called.
	Seed int64

	mu    sync.Mutex
	rules []*rule
	// made counts all rules. Equal rules differ by their number when a chance is drawn.
	made int
}

// Wrap returns a copy of a client configuration whose clients meet the faults. Several configurations may be wrapped.
func (f *Faults) Wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	prefix := prefixOf(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faulty{f, prefix, next} })
	return config
}

// On selects requests of a verb for a resource, until the test ends. A method of Fault's kind must follow, such as
// Conflict: the selection has no effect without it. The verb is get, list, watch, create, update, patch, delete or
// deletecollection, several of them with commas between, or * for all. Server-side apply is patch. The resource is
// flunders, flunders.wardle.example.com, flunders/status for a subresource, flunders/* for all subresources without
// flunders, or * for all resources with their subresources. Without a group, it is that of any group.
//
// If several faults select a request, the first of them that is due decides its answer, and the others do not count
// the request. Delays add up.
//
// The test fails at its end if the fault was never injected, except with Optional: such a test would succeed without the
// fault as well. A mistake in the arguments fails the test at once.
func (f *Faults) On(t Test, verb, resource string) *Selection {
	t.Helper()
	return f.selection(t, verb, resource, []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}, false)
}

func (f *Faults) selection(t Test, verb, resource string, known []string, webhook bool) *Selection {
	t.Helper()
	r := &rule{text: verb + " " + resource, webhook: webhook, first: 1, last: math.MaxInt, chance: 1, over: make(chan struct{})}
	if webhook {
		r.text = "webhook " + r.text
	}
	if verb != "*" {
		for v := range strings.SplitSeq(verb, ",") {
			if !slices.Contains(known, v) {
				t.Fatalf("fault: %q is none of the verbs %s and *", v, strings.Join(known, ", "))
			}
			r.verbs = append(r.verbs, v)
		}
	}
	main, subresource, has := strings.Cut(resource, "/")
	r.resource, r.subresource = schema.ParseGroupResource(main), subresource
	switch {
	case main == "" || has && subresource == "" || strings.Contains(subresource, "/") || strings.Contains(resource, " "):
		t.Fatalf("fault: the resource %q is not of a form such as flunders, flunders.wardle.example.com or flunders/status", resource)
	case strings.ToLower(resource) != resource:
		t.Fatalf("fault: the resource %q is not of lower case: it is the plural in the paths of requests, not the kind", resource)
	case main == "*" && !has:
		r.subresource, r.anyOrNone = "*", true
	}
	t.Cleanup(func() { f.end(t, r) })
	return &Selection{faults: f, test: t, rule: r}
}

// Selection is a set of requests that On has selected. Its methods narrow it, and the kind of the fault ends it.
type Selection struct {
	faults *Faults
	test   Test
	rule   *rule
}

// Namespace selects requests for a namespace alone. Requests for all namespaces are not for it.
func (s *Selection) Namespace(namespace string) *Selection {
	s.rule.namespace = namespace
	s.rule.text += " in " + namespace
	return s
}

// Name selects requests for an object of this name alone, creates among them.
func (s *Selection) Name(name string) *Selection {
	s.rule.name = name
	s.rule.text += " " + name
	return s
}

// First selects the first n requests alone. First, Nth, Between and After count from the moment when the kind of the
// fault is set, and replace each other.
func (s *Selection) First(n int) *Selection {
	s.test.Helper()
	return s.Between(1, n)
}

// Nth selects the nth request alone; the first has the number 1.
func (s *Selection) Nth(n int) *Selection {
	s.test.Helper()
	return s.Between(n, n)
}

// After selects all requests after the first n.
func (s *Selection) After(n int) *Selection {
	s.test.Helper()
	return s.Between(n+1, math.MaxInt)
}

// Between selects requests by their number, from the first to the last, both included; the first of all has the number 1.
func (s *Selection) Between(first, last int) *Selection {
	s.test.Helper()
	if first < 1 || last < first {
		s.test.Fatalf("fault: %s: requests %d to %d are none: the first request has the number 1", s.rule.text, first, last)
	}
	s.rule.first, s.rule.last = first, last
	return s
}

// EachObject counts the requests for each object by themselves: First(1) is the first request for every object. A list
// and a watch are for the collection of their namespace.
func (s *Selection) EachObject() *Selection {
	s.rule.eachObject = true
	s.rule.text += " of each object"
	return s
}

// Chance selects each request with a probability, which is above 0 and at most 1. Seed decides which.
func (s *Selection) Chance(p float64) *Selection {
	s.test.Helper()
	if math.IsNaN(p) || p <= 0 || p > 1 {
		s.test.Fatalf("fault: %s: %v is no probability above 0 and at most 1", s.rule.text, p)
	}
	s.rule.chance = p
	return s
}

// Optional allows a fault that is never injected.
func (s *Selection) Optional() *Selection {
	s.rule.optional = true
	return s
}

// Fault is a fault that may be injected until its test ends.
type Fault struct {
	faults *Faults
	rule   *rule
}

// Injected returns the number of requests that met the fault so far.
func (f *Fault) Injected() int {
	f.faults.mu.Lock()
	defer f.faults.mu.Unlock()
	return f.rule.injected
}

// inject begins a fault.
func (s *Selection) inject(name string, how effect, allowed ...string) *Fault {
	s.test.Helper()
	f, r := s.faults, s.rule
	fault := &Fault{faults: f, rule: r}
	if r.effect != nil {
		s.test.Fatalf("fault: %s: %s: the selection has a kind already, %s", r.text, name, r.kind)
		return fault
	}
	if _, can := how.(webhookEffect); r.webhook && !can {
		s.test.Fatalf("fault: %s: %s is no fault of a webhook", r.text, name)
	}
	if len(allowed) > 0 && (r.verbs == nil || slices.ContainsFunc(r.verbs, func(v string) bool { return !slices.Contains(allowed, v) })) {
		s.test.Fatalf("fault: %s: %s is for %s alone", r.text, name, strings.Join(allowed, ", "))
	}
	f.mu.Lock()
	r.kind, r.effect = name, how
	f.made++
	r.number = f.made
	f.rules = append(f.rules, r)
	f.mu.Unlock()
	return fault
}

// end takes a rule away when its test ends, and fails the test if the fault was never injected.
func (f *Faults) end(t Test, r *rule) {
	t.Helper()
	close(r.over)
	f.mu.Lock()
	f.rules = slices.DeleteFunc(slices.Clone(f.rules), func(other *rule) bool { return other == r })
	problem := r.problem()
	summary := fmt.Sprintf("fault: %s: %s: met by %d of %d requests, seed %d", r.text, r.kind, r.injected, r.matched, f.seed())
	f.mu.Unlock()
	switch {
	case t.Failed():
		t.Logf("%s", summary)
	case problem != "":
		t.Errorf("fault: %s", problem)
	}
}

func (f *Faults) seed() int64 {
	if f.Seed == 0 {
		return 1
	}
	return f.Seed
}

// rule is a fault with its selection. The mutex of the faults guards all from kind on.
type rule struct {
	text string

	webhook              bool
	verbs                []string // nil means all
	resource             schema.GroupResource
	subresource          string // * means any
	anyOrNone            bool   // the resource without a subresource as well
	namespace, name      string
	first, last          int
	eachObject, optional bool
	chance               float64
	over                 chan struct{}
	kind                 string
	effect               effect
	number               int
	matched, injected    int
	ofObject             map[string]int
	others               map[string]int
}

// selects reports whether the rule counts a request.
func (r *rule) selects(t target) bool {
	return t.resource != "" && (r.verbs == nil || slices.Contains(r.verbs, t.verb)) &&
		(r.resource.Resource == "*" || r.resource.Resource == t.resource) &&
		(r.resource.Group == "" || r.resource.Group == t.group) &&
		(r.subresource == t.subresource || r.subresource == "*" && (r.anyOrNone || t.subresource != "")) &&
		(r.namespace == "" || r.namespace == t.namespace) && (r.name == "" || r.name == t.name)
}

// due counts a request that the rule selects, and reports whether it meets the fault.
func (f *Faults) due(r *rule, t target) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.ofObject == nil {
		r.ofObject = map[string]int{}
	}
	object := t.String()
	r.matched++
	r.ofObject[object]++
	n := r.matched
	if r.eachObject {
		n = r.ofObject[object]
	}
	if n < r.first || n > r.last || !f.drawn(r, object) {
		return false
	}
	r.injected++
	return true
}

// drawn reports whether chance selects a request. It depends on the seed, on the rule, on the object, and on the number of
// the request among those for the object, so that requests for other objects do not change it.
func (f *Faults) drawn(r *rule, object string) bool {
	if r.chance == 1 {
		return true
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s %s %s %d", r.number, r.text, r.kind, object, r.ofObject[object])
	return rand.New(rand.NewPCG(uint64(f.seed()), hash.Sum64())).Float64() < r.chance
}

// pass notes a request that the rule does not select, for the message about a fault that was never injected.
func (f *Faults) pass(r *rule, t target) {
	const most = 20
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.others == nil {
		r.others = map[string]int{}
	}
	if key := t.verb + " " + t.kind(); r.others[key] > 0 || len(r.others) < most {
		r.others[key]++
	}
}

// problem returns the reason why the test of the fault proves nothing; empty if it does.
func (r *rule) problem() string {
	about := r.text + ": " + r.kind + ": it was never injected, since "
	switch {
	case r.effect == nil:
		return r.text + ": the selection has no kind: end it by a method such as Conflict"
	case r.injected > 0 || r.optional || r.chance < 1 && r.matched > 0:
		return ""
	case r.matched > 0:
		return fmt.Sprintf("%sthere were %d such requests only", about, r.matched)
	case len(r.others) == 0:
		return about + "no client of a configuration that Wrap returned sent a request"
	}
	var seen []string
	for _, other := range slices.Sorted(maps.Keys(r.others)) {
		seen = append(seen, fmt.Sprintf("%s (%d)", other, r.others[other]))
	}
	return about + "no request was of this kind; there were " + strings.Join(seen, ", ")
}

// sleep waits for a duration, and returns early when the request or the test ends.
func sleep(r *http.Request, over <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	return nil
}
