package fastpath

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The reference lists every condition of the gate. UPDATE=1 writes the list anew.
func TestConditions_areInTheReference(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../docs/reference/fast-path.md", "| `reason` | routes | condition |\n|---|---|---|\n", "\n## "
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	old, tail, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no table of conditions", page)
	}
	var table strings.Builder
	for _, c := range conditions {
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", c.reason, routesOf(c.routes), c.why)
	}
	if old == table.String() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s lists other conditions: UPDATE=1 go test ./internal/fastpath", page)
	}
	if err := os.WriteFile(page, []byte(head+begin+table.String()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// routesOf names routes.
func routesOf(routes Route) string {
	switch routes {
	case all:
		return "all"
	case Upstream:
		return "none"
	case writes:
		return "writes"
	}
	var of []string
	for _, route := range []Route{Get, List, Watch, Create, Update, Patch, Delete} {
		if routes&route != 0 {
			of = append(of, route.String())
		}
	}
	return strings.Join(of, ", ")
}
