package generate

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
)

var update = flag.Bool("update", false, "rewrite the generated files below testdata")

const workerVerb = "generate-worker"

// TestMain makes the test binary its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == workerVerb {
		if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString("annex: " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func testWorker() []string { return []string{os.Args[0], workerVerb} }

// testModule returns the module that the tool embeds.
func testModule(t testing.TB) Module {
	t.Helper()
	var m Module
	var err error
	for name, text := range map[string]*[]byte{"go.mod": &m.Mod, "go.sum": &m.Sum} {
		if *text, err = os.ReadFile(filepath.Join("../..", name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

var goldenPackages = []string{
	"testdata/byhand/v1",
	"testdata/kubebuilder/v1",
	"testdata/protobuf/shapes",
	"testdata/shop/shared",
	"testdata/shop/v1",
	"testdata/shop/v2",
}

// The generated files below testdata show reviewers the effect of a change to the generator. go test
// ./internal/generate -update rewrites them.
func TestRun_golden(t *testing.T) {
	if *update {
		if _, err := Run(t.Context(), Options{Args: goldenPackages, Worker: testWorker(), Module: testModule(t), Anew: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, out := range generateForTest(t, goldenPackages...) {
		for file, text := range out.files() {
			committed, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			if d := diff.Diff("committed", committed, "generated", []byte(text)); d != nil {
				t.Errorf("%s:\n%s", file, d)
			}
		}
	}
}

// A package generated alone reads its neighbours' generated files; generated together with them, it does not. The
// order of maps must not matter, either.
func TestRun_otherPackages_doNotMatter(t *testing.T) {
	if testing.Short() {
		t.Skip("loads packages three times")
	}
	together := generateForTest(t, "testdata/shop/...")
	for _, i := range []int{1, 2} { // v1 and v2; v2 imports v1
		alone := generateForTest(t, together[i].Dir)
		if len(alone) != 1 || alone[0].Package != together[i].Package {
			t.Fatalf("generated %d packages for %s", len(alone), together[i].Package)
		}
		if d := diff.Diff("together", []byte(together[i].Source), "alone", []byte(alone[0].Source)); d != nil {
			t.Errorf("%s:\n%s", together[i].Package, d)
		}
	}
}

func generateForTest(t testing.TB, args ...string) []output {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	requests, err := requestsByModule(dir, args)
	if err != nil {
		t.Fatal(err)
	}
	var all []output
	for _, r := range requests {
		r.Module = testModule(t)
		resp, err := work(t.Context(), testWorker(), r)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Problems) > 0 {
			t.Fatal(resp.Problems)
		}
		all = append(all, resp.Packages...)
	}
	return all
}

func TestRun_kinds_areWithoutLists(t *testing.T) {
	for _, out := range generateForTest(t, "testdata/shop/v1", "testdata/shop/v2", "testdata/shop/shared") {
		want := []string{"Order"}
		if filepath.Base(out.Dir) == "shared" {
			want = []string{}
		}
		if !slices.Equal(out.Kinds, want) {
			t.Errorf("%s: kinds %q, want %q", out.Package, out.Kinds, want)
		}
	}
}

// A run from start to written files, with a warm build cache:
//
//	go test ./internal/generate -run '^$' -bench .
func BenchmarkGenerate(b *testing.B) {
	for b.Loop() {
		if _, err := Run(b.Context(), Options{Args: goldenPackages, Worker: testWorker(), Module: testModule(b), Anew: true}); err != nil {
			b.Fatal(err)
		}
	}
}

// The same run, when no input has changed.
func BenchmarkGenerateAgain(b *testing.B) {
	b.Setenv("XDG_CACHE_HOME", b.TempDir())
	o := Options{Args: goldenPackages, Worker: testWorker(), Module: testModule(b)}
	for range 2 {
		if _, err := Run(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
	o.Worker = []string{"false"} // must not run
	for b.Loop() {
		if _, err := Run(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
}
