package etcdtest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// apiTests is the package of the project's own tests of the API.
const apiTests = "./internal/testing/apitest"

// TestAPI_onEtcd runs the tests of the API, whose servers otherwise choose another storage, on a real etcd.
func TestAPI_onEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the tests of another package")
	}
	runAPI(t, "etcd", endpoints(startCluster(t, 1, nil)), nil)
}

// TestQueries_onEtcd runs the tests of queries on a real etcd, which keeps no orders.
func TestQueries_onEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the tests of another package")
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout=25m", apiTests+"/queries")
	cmd.Dir = checkout
	cmd.Env = append(os.Environ(), "ANNEX_TEST_ETCD="+strings.Join(endpoints(startCluster(t, 1, nil)), ","))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("go test: %v\n%s", err, out)
	}
	if n := strings.Count(string(out), "objects are stored in etcd"); n < 8 {
		t.Errorf("only %d tests stored anything in etcd: is the environment read?", n)
	}
}

// runAPI runs the tests of the API that store objects, and prints their number and the names of the others. notRun
// maps the tests that do not run on this server to the reasons.
func runAPI(t *testing.T, name string, endpoints []string, notRun map[string]string) {
	t.Helper()
	skipped := slices.Sorted(maps.Keys(notRun))
	if there := listed(t, skipped); !slices.Equal(there, skipped) {
		t.Errorf("%s has of the tests %s only %s", apiTests, skipped, there)
	}
	// The programs of TestCommandLine choose their storages themselves.
	cmd := exec.CommandContext(
		t.Context(),
		"go",
		"test",
		"-count=1",
		"-json",
		"-timeout=25m",
		"-skip",
		exactly(append(skipped, "TestCommandLine")),
		apiTests,
	)
	cmd.Dir = checkout
	cmd.Env = append(os.Environ(), "ANNEX_TEST_STORAGE=etcd", "ANNEX_TEST_ETCD="+strings.Join(endpoints, ","))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := apiReport{
		ran:      map[string]bool{},
		running:  map[string]bool{},
		failed:   map[string]string{},
		excluded: maps.Clone(notRun),
		log:      map[string]string{},
	}
	if r.excluded == nil {
		r.excluded = map[string]string{}
	}
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			break
		}
		r.read(line)
	}
	if err := cmd.Wait(); err != nil && len(r.failed) == 0 {
		t.Errorf("go test: %v; these tests had not ended: %v\n%s", err, slices.Sorted(maps.Keys(r.running)), r.log[""])
	}
	fmt.Printf("api suite: %s: %d of %d tests\n", name, len(r.ran)-len(r.failed), len(r.ran))
	for test, log := range r.failed {
		fmt.Printf("api suite: %s: failed: %s\n", name, test)
		t.Errorf("%s:\n%s", test, log)
	}
	others := 0
	for _, test := range slices.Sorted(maps.Keys(r.excluded)) {
		if strings.HasPrefix(r.excluded[test], "it is about ") {
			others++
			continue
		}
		fmt.Printf("api suite: %s: not run: %s: %s\n", name, test, r.excluded[test])
	}
	fmt.Printf("api suite: %s: not run: %d tests that are about another storage\n", name, others)
	if len(r.ran) < 80 {
		t.Errorf("only %d tests stored anything: is the environment read?", len(r.ran))
	}
}

// checkout is the root of the repository.
const checkout = "../../.."

// exactly returns the -run pattern that matches the tests and no others.
func exactly(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// listed returns those of the given tests that exist in apiTests, sorted.
func listed(t *testing.T, tests []string) []string {
	t.Helper()
	if len(tests) == 0 {
		return nil
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-list", exactly(tests), apiTests)
	cmd.Dir = checkout
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	var there []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Test") {
			there = append(there, strings.TrimSpace(line))
		}
	}
	return slices.Sorted(slices.Values(there))
}

// apiReport is the result of go test -json, by top-level tests. Only tests that store objects count.
type apiReport struct {
	ran      map[string]bool
	running  map[string]bool
	failed   map[string]string
	excluded map[string]string
	log      map[string]string
}

func (r *apiReport) read(line []byte) {
	var e struct{ Action, Test, Output string }
	if err := json.Unmarshal(line, &e); err != nil {
		r.log[""] += string(line)
		return
	}
	test, _, nested := strings.Cut(e.Test, "/")
	switch e.Action {
	case "run", "cont":
		r.running[e.Test] = true
	case "pause", "pass", "skip":
		delete(r.running, e.Test)
	case "output":
		r.log[test] += e.Output
		if strings.Contains(e.Output, "objects are stored in etcd") {
			r.ran[test] = true
		}
		if _, reason, found := strings.Cut(e.Output, "not on etcd: "); found {
			r.excluded[test] = strings.TrimSpace(reason)
		}
	case "fail":
		delete(r.running, e.Test)
		if !nested && test != "" {
			r.failed[test] = r.log[test]
			r.ran[test] = true
		}
	}
}
