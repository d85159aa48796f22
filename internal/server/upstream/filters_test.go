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

// A name is printed by describe, and stands for one filter.
func TestFilters_namesAreUnique(t *testing.T) {
	t.Parallel()
	var all Traits
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		v.Field(i).SetBool(true)
	}
	seen := map[string]bool{}
	for _, name := range slices.Concat(Filters(all), Filters(Traits{})) {
		if name == "" {
			t.Error("a filter has no name")
		}
		seen[name] = true
	}
	if len(seen) != len(filterTable) {
		t.Errorf("%d names for %d filters", len(seen), len(filterTable))
	}
	if slices.Contains(Filters(Traits{}), "audit of watches") || slices.Contains(Filters(all), "origins") {
		t.Error("a filter is there that the server does not need")
	}
}
