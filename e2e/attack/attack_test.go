package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The short form: the most important attacks, for a second each. Machines that run tests are busy, so latencies
// decide nothing here; but no request of a well-behaved caller may fail, the memory is bounded, and no acknowledged
// write is lost.
func TestAnnexServe_underAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds annex")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "annex")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../cmd/annex"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build annex: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	server, stop, err := serveAnnex(ctx, program, dir, []string{"--memory-budget", "256Mi"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	if server.kind, err = kindOf("v1/configmaps/ConfigMap"); err != nil {
		t.Fatal(err)
	}
	if err := server.prepare(ctx, ""); err != nil {
		t.Fatal(err)
	}
	var lines []string
	b := &bench{t: server, duration: time.Second, budget: 256 << 20, done: func(one result) {
		lines = append(lines, one.Attack+": "+one.Sent+"; user "+one.User.String()+", administrator "+one.Admin.String())
	}}
	rs, err := b.run(ctx, short())
	if err != nil {
		t.Fatalf("%v; before that: %q", err, lines)
	}
	for _, one := range rs.Results {
		for _, why := range one.Failed {
			t.Errorf("%s: %s", one.Attack, why)
		}
	}
	if rs.History != "" {
		t.Error(rs.History)
	}
	for _, line := range lines { // visible when a test fails, and with -v
		t.Log(line)
	}
}

// short returns the attacks of TestAnnexServe_underAttack. Each added attack has failed against some server.
func short() []attack {
	return []attack{
		stalledReviews{},
		slowReads{},
		slowBodies{},
		rapidReset{},
		readsWithBodies{},
		continuationFlood{},
		packedHeaders{},
		gzipBodies{},
		deepJSON{},
		yamlAliases{},
		deepMergePatch{},
		jsonPatchCopies{},
	}
}

func TestHistory_check(t *testing.T) {
	t.Parallel()
	// Operations on one object; those with the same call overlap.
	op := func(a action, before, value string, o outcome, call, end int64) operation {
		return operation{action: a, key: "k", before: before, value: value, outcome: o, call: call, end: end}
	}
	for name, test := range map[string]struct {
		all  []operation
		fine bool
	}{
		"one after the other": {[]operation{op(create, "", "a", done, 1, 2), op(get, "", "a", done, 3, 4),
			op(update, "a", "b", done, 5, 6), op(get, "", "b", done, 7, 8), op(remove, "", "", done, 9, 10), op(get, "", "", missing, 11, 12)},
			true},
		"a lost create": {[]operation{op(create, "", "a", done, 1, 2), op(get, "", "", missing, 3, 4)}, false},
		"a lost update": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", done, 3, 4),
			op(get, "", "a", done, 5, 6)}, false},
		"two updates of one value": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", done, 3, 4),
			op(update, "a", "c", done, 3, 4)}, false},
		"a conflict after an update": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", done, 3, 4),
			op(update, "a", "c", conflict, 3, 4)}, true},
		"a conflict without a reason": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", conflict, 3, 4),
			op(get, "", "a", done, 5, 6)}, false},
		"a second create": {[]operation{op(create, "", "a", done, 1, 2), op(create, "", "b", conflict, 3, 4)}, true},
		"an unknown update, seen": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", unknown, 3, 4),
			op(get, "", "a", done, 5, 6), op(get, "", "b", done, 7, 8)}, true},
		"an unknown update, never seen": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", unknown, 3, 4),
			op(get, "", "a", done, 5, 6)}, true},
		"a read that went back": {[]operation{op(create, "", "a", done, 1, 2), op(update, "a", "b", unknown, 3, 4),
			op(get, "", "b", done, 5, 6), op(get, "", "a", done, 7, 8)}, false},
		"a value that nobody wrote": {[]operation{op(create, "", "a", done, 1, 2), op(get, "", "z", done, 3, 4)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory()
			h.all["k"] = test.all
			if n, err := h.check(); n != len(test.all) || (err == nil) != test.fine {
				t.Errorf("%d operations, %v", n, err)
			}
		})
	}
}

func TestBench_judge(t *testing.T) {
	t.Parallel()
	quiet := result{User: latency{Requests: 10, P99: 10 * time.Millisecond}, Admin: latency{Requests: 10, P99: 100 * time.Millisecond}}
	for name, test := range map[string]struct {
		one    result
		failed int
	}{
		"as before":                        {quiet, 0},
		"within 250 ms":                    {result{User: latency{Requests: 1, P99: 249 * time.Millisecond}, Admin: quiet.Admin}, 0},
		"slow":                             {result{User: latency{Requests: 1, P99: 251 * time.Millisecond}, Admin: quiet.Admin}, 1},
		"within five times":                {result{User: quiet.User, Admin: latency{Requests: 1, P99: 500 * time.Millisecond}}, 0},
		"a request has failed":             {result{User: latency{Requests: 1, Failed: 1}, Admin: quiet.Admin}, 1},
		"no request was answered":          {result{Admin: quiet.Admin}, 1},
		"more memory than the bound":       {result{User: quiet.User, Admin: quiet.Admin, Peak: 1001}, 1},
		"work for requests that were over": {result{User: quiet.User, Admin: quiet.Admin, Busy: mostBusy + time.Second}, 1},
	} {
		b := &bench{timing: true}
		if b.judge(&test.one, quiet, 1000); len(test.one.Failed) != test.failed {
			t.Errorf("%s: %q", name, test.one.Failed)
		}
	}
}

func TestNamed_unknown(t *testing.T) {
	t.Parallel()
	if some, err := named("slow-reads, deep-json"); err != nil || len(some) != 2 {
		t.Errorf("%v, %v", some, err)
	}
	if _, err := named("slow-reads,none"); err == nil {
		t.Error("an attack that does not exist was taken")
	}
	seen := map[string]bool{}
	for _, a := range attacks() {
		if seen[a.Name()] {
			t.Errorf("two attacks are named %s", a.Name())
		}
		seen[a.Name()] = true
	}
}
