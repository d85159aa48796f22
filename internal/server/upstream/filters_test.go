package upstream

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// upstreamsFilters returns the names of the filters of upstream's chain in the order in which a request passes them, by its source.
func upstreamsFilters(t *testing.T) []string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/apiserver").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "pkg", "server", "config.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, declared := range file.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if !ok || f.Name.Name != "DefaultBuildHandlerChain" {
			continue
		}
		ast.Inspect(f, func(node ast.Node) bool {
			assigned, ok := node.(*ast.AssignStmt)
			if !ok || len(assigned.Lhs) != 1 || len(assigned.Rhs) != 1 {
				return true
			}
			to, _ := assigned.Lhs[0].(*ast.Ident)
			call, _ := assigned.Rhs[0].(*ast.CallExpr)
			if to == nil || to.Name != "handler" || call == nil {
				return true
			}
			if called, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(called.Sel.Name, "With") {
				names = append(names, called.Sel.Name)
			}
			return true
		})
	}
	slices.Reverse(names)
	return names
}

// elsewhere are upstream's filters that the chain has in another place or not at all, with the reason.
var elsewhere = map[string]string{
	"WithAuditInit":                        "beginning makes the audit ID; recovery is outside, so that it answers panics of all filters",
	"WithMuxAndDiscoveryComplete":          "the server listens when its routes are complete",
	"WithRoutine":                          "watches leave the stacks of their handlers by push.Rest",
	"WithLatencyTrackers":                  "the latency of single filters is not recorded",
	"WithRetryAfter":                       "a draining server refuses connections, not requests",
	"WithImpersonation":                    "WithConstrainedImpersonation allows all that it allows",
	"WithWarningRecorder":                  "beginning adds it with what else it adds to the context; no filter writes headers concurrently",
	"WithRequestReceivedTimestamp":         "beginning adds it with what else it adds to the context",
	"WithHSTS":                             "connection advice sets its header beside the advice to reconnect",
	"WithProbabilisticGoaway":              "connection advice",
	"WithPriorityAndFairness":              "limits queues requests while flow control is known, and counts them otherwise",
	"WithTimeoutForNonLongRunningRequests": "departure extends the deadline to the connection, without a goroutine for each request",
}

func TestFilters_followUpstream(t *testing.T) {
	t.Parallel()
	theirs := upstreamsFilters(t)
	if len(theirs) < 15 {
		t.Fatalf("upstream has only %v", theirs)
	}
	var ours []string
	for _, f := range filterTable {
		for _, name := range f.upstream {
			if !slices.Contains(theirs, name) {
				t.Errorf("filter %q stands for %s, which upstream's chain does not have", f.name, name)
			}
			if elsewhere[name] == "" {
				ours = append(ours, name)
			}
		}
	}
	want := slices.DeleteFunc(theirs, func(name string) bool { return elsewhere[name] != "" })
	if !slices.Equal(ours, want) {
		t.Errorf("the order is\n%s\nupstream's is\n%s", strings.Join(ours, " > "), strings.Join(want, " > "))
	}
}

func TestFilters_elsewhere_areUpstreams(t *testing.T) {
	t.Parallel()
	theirs := upstreamsFilters(t)
	for name := range elsewhere {
		if !slices.Contains(theirs, name) {
			t.Errorf("%s is no filter of upstream's chain any more: take it out of elsewhere", name)
		}
	}
}

// describe prints the names, and each stands for one filter.
func TestFilters_namesAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range filterTable {
		if f.name == "" || seen[f.name] || f.wrap == nil {
			t.Errorf("filter %q", f.name)
		}
		seen[f.name] = true
	}
	if all := Filters(); len(all) != len(filterTable) || !slices.Contains(all, "audit of watches (with an audit)") {
		t.Errorf("describe prints %q", all)
	}
}

// Each trait of a server adds a filter or takes one away.
func TestFilters_traits(t *testing.T) {
	t.Parallel()
	count := func(traits Traits) (n int) {
		for _, f := range filterTable {
			if f.when == nil || f.when.holds(traits) {
				n++
			}
		}
		return n
	}
	of := reflect.TypeFor[Traits]()
	for i := range of.NumField() {
		var one Traits
		reflect.ValueOf(&one).Elem().Field(i).SetBool(true)
		if count(one) == count(Traits{}) {
			t.Errorf("%s changes nothing", of.Field(i).Name)
		}
	}
}
