package sequences

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func number(t *testing.T, variable string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// both are the real server and ours.
type both struct{ theirs, ours *connection }

const (
	// workers is the number of concurrent sequences.
	workers = 8
	// shown is the number of failing sequences that are shrunk and printed.
	shown = 8
	// attempts is the number of runs to shrink a sequence.
	attempts = 40
)

// Both servers answer every request of every sequence alike, and send the same events to watches.
func TestSequences(t *testing.T) {
	seed, count := number(t, "ANNEX_SEQUENCES_SEED", rand.Uint64()), number(t, "ANNEX_SEQUENCES", 60)
	from := number(t, "ANNEX_SEQUENCES_FROM", 0)
	t.Logf("ANNEX_SEQUENCES_SEED=%d ANNEX_SEQUENCES=%d", seed, count)
	b := both{connect(t, host.Admin()), connect(t, alone.ServeControlPlane(t, "--controllers", "garbage-collector-controller"))}
	b.define(t)

	var steps, failed atomic.Int64
	codes := &counts{}
	next, done := make(chan uint64), sync.WaitGroup{}
	for range workers {
		done.Go(func() {
			for i := range next {
				sequence := random{rand.New(rand.NewPCG(seed, i))}.sequence()
				found := b.run(t.Context(), fmt.Sprintf("s%d", i), sequence, codes)
				steps.Add(int64(len(sequence)))
				if found == nil {
					continue
				}
				if n := failed.Add(1); n <= shown {
					found = b.shrink(t.Context(), fmt.Sprintf("s%d", i), found)
					t.Errorf("sequence %d: ANNEX_SEQUENCES_SEED=%d ANNEX_SEQUENCES_FROM=%d ANNEX_SEQUENCES=1\n%s", i, seed, i, found)
				} else {
					t.Errorf("sequence %d: %s\n%s", i, found.steps[len(found.steps)-1], found.difference)
				}
			}
		})
	}
	for i := range count {
		next <- from + i
	}
	close(next)
	done.Wait()
	t.Logf("%d sequences of %d requests, answered with %s; %d sequences differ", count, steps.Load(), codes, failed.Load())
}

// counts counts occurrences.
type counts struct{ sync.Map }

func (c *counts) add(what string) {
	n, _ := c.LoadOrStore(what, &atomic.Int64{})
	n.(*atomic.Int64).Add(1)
}

func (c *counts) String() string {
	var all []string
	c.Range(func(what, n any) bool {
		all = append(all, fmt.Sprintf("%s: %d", what, n.(*atomic.Int64).Load()))
		return true
	})
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// explained are the differences that docs/kubectl.md documents.
var explained = []struct {
	what string
	is   func(s step, theirs, ours string) bool
}{
	{"a version to read that is not a number", func(s step, theirs, ours string) bool {
		return s.method == "GET" && strings.Contains(s.query, "resourceVersion=x") && strings.HasPrefix(theirs, "500\n") &&
			strings.HasPrefix(ours, "400\n")
	}},
	{"who owns the finalizers in a namespace's spec", func(s step, theirs, ours string) bool {
		const owned = `"f:finalizers": {}`
		return strings.HasPrefix(s.path, "/api/v1/namespaces") && !strings.Contains(s.path, "/{ns}/") && strings.Contains(theirs, owned) &&
			!strings.Contains(ours, owned)
	}},
	{"a warning of a lease's finalizer", func(s step, theirs, ours string) bool {
		return strings.Contains(s.path, "/leases") && theirs == bareFinalizer.ReplaceAllString(ours, "")
	}},
	{"a dependent that was collected before its turn", func(s step, theirs, ours string) bool {
		_, resource, namespaced := strings.Cut(s.path, "/{ns}/")
		return s.method == "DELETE" && namespaced && !strings.Contains(resource, "/") && strings.Contains(s.body, `"preconditions"`) &&
			strings.HasPrefix(theirs, "409\n") && strings.Contains(theirs, "in the precondition") && strings.HasPrefix(ours, "200\n")
	}},
	{"the Go package of a type that another cannot be converted to", func(_ step, theirs, ours string) bool {
		return convertedTo.ReplaceAllString(theirs, "to ($1)") == convertedTo.ReplaceAllString(ours, "to ($1)")
	}},
}

var convertedTo = regexp.MustCompile(`\bto \(\w+\.(\w+)\)`)

var bareFinalizer = regexp.MustCompile(`(?m)^Warning: .*prefer a domain-qualified finalizer name.*\n`)

// explanation returns the name of a difference in docs/kubectl.md, if it has one.
func explanation(s step, theirs, ours string) string {
	for _, e := range explained {
		if e.is(s, theirs, ours) {
			return e.what
		}
	}
	return ""
}

// define creates the kind of the sequences on both servers, and waits until their controllers know it.
func (b both) define(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("testdata/widgets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	definition, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*connection{b.theirs, b.ours} {
		s := c.in("default")
		must := func(step step) {
			if answer, code, err := s.do(t.Context(), step); err != nil || code != http.StatusCreated {
				t.Fatalf("%s: %s, %v", step, answer, err)
			}
		}
		must(
			step{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", contentType: asJSON, body: string(definition)},
		)
		widgets := step{method: "GET", path: kinds[4].path}
		until(t, func(ctx context.Context) bool {
			_, code, err := s.do(ctx, widgets)
			return err == nil && code == http.StatusOK
		})
		// The garbage collector of a cluster looks for new kinds twice a minute.
		const owner, dependent = `{"apiVersion":"sequences.example.com/v1","kind":"Widget","metadata":{"name":"owner"},"spec":{"color":"red"}}`,
			`{"apiVersion":"sequences.example.com/v1","kind":"Widget","metadata":{"name":"dependent",` +
				`"ownerReferences":[{"apiVersion":"sequences.example.com/v1","kind":"Widget",` +
				`"name":"owner","uid":"{uid:widgets/owner}"}]},"spec":{"color":"red"}}`
		must(step{method: "POST", path: kinds[4].path, contentType: asJSON, body: owner})
		must(step{method: "POST", path: kinds[4].path, contentType: asJSON, body: dependent})
		if _, code, err := s.do(t.Context(), step{method: "DELETE", path: kinds[4].path + "/owner"}); err != nil || code != http.StatusOK {
			t.Fatal(code, err)
		}
		until(t, func(ctx context.Context) bool {
			_, code, err := s.do(ctx, step{method: "GET", path: kinds[4].path + "/dependent"})
			return err == nil && code == http.StatusNotFound
		})
	}
}

func until(t *testing.T, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(
		t.Context(),
		20*time.Millisecond,
		testwait.Patience,
		true,
		func(ctx context.Context) (bool, error) { return done(ctx), nil },
	)
	if err != nil {
		t.Fatal(err)
	}
}

// finding is a sequence whose last step shows a difference.
type finding struct {
	steps      []step
	difference string
}

func (f *finding) String() string {
	var b strings.Builder
	for _, s := range f.steps {
		fmt.Fprintf(&b, "  %.600s\n", s)
	}
	return b.String() + f.difference
}

// run sends the steps to both servers, in a new namespace, until their responses differ.
func (b both) run(ctx context.Context, namespace string, steps []step, codes *counts) *finding {
	theirs, ours := b.theirs.in(namespace), b.ours.in(namespace)
	steps = append([]step{{method: "POST", path: "/api/v1/namespaces", contentType: asJSON, body: `{"metadata":{"name":"{ns}"}}`}}, steps...)
	owned := false
	for i, step := range steps {
		x, code, err := theirs.do(ctx, step)
		if err != nil {
			return &finding{steps[:i+1], fmt.Sprintf("kube-apiserver: %v", err)}
		}
		y, _, err := ours.do(ctx, step)
		if err != nil {
			return &finding{steps[:i+1], fmt.Sprintf("annex: %v", err)}
		}
		codes.add(strconv.Itoa(code))
		if x != y {
			if why := explanation(step, x, y); why != "" {
				codes.add(why)
				continue
			}
			return &finding{steps[1 : i+1], difference(x, y)}
		}
		owned = owned || strings.Contains(step.body, "ownerReferences") || step.method == "DELETE"
		if step.method == "GET" || code >= 300 || !owned {
			continue
		}
		for who, s := range map[string]*server{"kube-apiserver": theirs, "annex": ours} {
			if err := s.settle(ctx); err != nil {
				return &finding{steps[1 : i+1], who + ": " + err.Error()}
			}
		}
	}
	return nil
}

// shrink looks for fewer steps that show a difference at the end.
func (b both) shrink(ctx context.Context, namespace string, f *finding) *finding {
	codes := &counts{}
	for tried, i := 0, len(f.steps)-2; i >= 0 && tried < attempts; i, tried = i-1, tried+1 {
		fewer := slices.Delete(slices.Clone(f.steps), i, i+1)
		if g := b.run(ctx, fmt.Sprintf("%s-%d", namespace, tried), fewer, codes); g != nil {
			f, i = g, min(i, len(g.steps)-1)
		}
	}
	return f
}

// difference returns the lines that only one of them has.
func difference(theirs, ours string) string {
	x, y := strings.Split(theirs, "\n"), strings.Split(ours, "\n")
	for len(x) > 0 && len(y) > 0 && x[0] == y[0] {
		x, y = x[1:], y[1:]
	}
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	return fmt.Sprintf("kube-apiserver, %.3s:\n%.2500s\nannex, %.3s:\n%.2500s\n", theirs, strings.Join(x, "\n"), ours, strings.Join(y, "\n"))
}
