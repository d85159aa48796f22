package cli

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/tools/txtar"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
	"github.com/annexapi/annex/cmd/annex/internal/image"
	"github.com/annexapi/annex/cmd/annex/internal/scaffold"
)

// root returns the checkout that projects are made from.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// project creates an empty folder of that name, and makes it the current one.
func project(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv("GOWORK", "off")
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOSUMDB", "off")
	return dir
}

// annex runs a command line in this process, which must succeed.
func annex(t *testing.T, line string) {
	t.Helper()
	var out bytes.Buffer
	if code := Main(Module{}, strings.Fields(line), strings.NewReader(""), &out, &out); code != 0 {
		t.Fatalf("annex %s: exit code %d\n%s", line, code, out.String())
	}
}

// tree reads the files of a project. It replaces the path of the checkout by the path in a sample.
func tree(t *testing.T, dir, checkout string) map[string]string {
	t.Helper()
	files := map[string]string{}
	near, err := filepath.Rel(dir, checkout) // as go.mod has it if the checkout is in the folder of temporary files
	if err != nil {
		t.Fatal(err)
	}
	inSample := strings.NewReplacer("=> "+checkout, "=> ../..", "=> "+filepath.ToSlash(near), "=> ../..")
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (rel == "bin" || rel == "data"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		text, err := os.ReadFile(path)
		files[filepath.ToSlash(rel)] = inSample.Replace(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func update() bool { return os.Getenv("UPDATE") != "" }

// The sample animal equals the output of the commands, except for one field.
func TestSampleAnimal_equalsOutput(t *testing.T) {
	checkout := root(t)
	patch, err := filepath.Abs("testdata/animal.patch")
	if err != nil {
		t.Fatal(err)
	}
	dir := project(t, "animal")
	annex(t, "init --domain demo.io")
	annex(t, "create api --group animal --version v1alpha1 --kind Cat")
	if out, err := exec.Command("git", "apply", patch).CombinedOutput(); err != nil {
		t.Fatalf("the patch of the one field does not apply: %v\n%s", err, out)
	}
	annex(t, "generate")

	sample := filepath.Join(checkout, "samples", "animal")
	want := tree(t, dir, checkout)
	if update() {
		for file, text := range want {
			path := filepath.Join(sample, filepath.FromSlash(file))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := tree(t, sample, checkout)
	for _, file := range slices.Sorted(union(want, got)) {
		if want[file] != got[file] {
			t.Errorf("samples/animal/%s is not what the commands write; make generate rewrites it\n%s", file,
				diff.Diff("committed", []byte(got[file]), "written now", []byte(want[file])))
		}
	}
}

func union(a, b map[string]string) func(yield func(string) bool) {
	all := map[string]bool{}
	for name := range a {
		all[name] = true
	}
	for name := range b {
		all[name] = true
	}
	return func(yield func(string) bool) {
		for name := range all {
			if !yield(name) {
				return
			}
		}
	}
}

// steps are the commands whose output testdata/trees holds.
var steps = []struct{ file, command string }{
	{"init", "init --domain demo.io --repo example.com/zoo"},
	{"create-api", "create api --group animal --version v1alpha1 --kind Cat"},
	{"create-api-second", "create api --group animal --version v1alpha1 --kind Zoo --namespaced=false"},
	{"create-admission", "create admission --kind Cat"},
	{"create-controller", "create controller --kind Cat"},
	{"create-subresource", "create subresource --kind Cat --name feed"},
	{"create-subresource-logs", "create subresource --kind Cat --form logs"},
	{"create-version", "create version --kind Cat --version v1beta1"},
	{"create-plugin", "create plugin --name zoo"},
}

// The trees are reviewed as a diff; UPDATE=1 rewrites them.
func TestScaffold_trees(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a project for each verb")
	}
	checkout := root(t)
	trees, err := filepath.Abs("testdata/trees")
	if err != nil {
		t.Fatal(err)
	}
	dir := project(t, "zoo")
	before := map[string]string{}
	for _, step := range steps {
		annex(t, step.command)
		after := tree(t, dir, checkout)
		archive := &txtar.Archive{Comment: []byte("$ annex " + step.command + "\n\n")}
		for _, file := range slices.Sorted(union(before, after)) {
			if before[file] == after[file] {
				continue
			}
			text := after[file]
			if file == "go.sum" || file == "go.mod" || file == image.ProfileName || filepath.Base(file) == generate.FileName ||
				filepath.Ext(file) == ".proto" {
				text = summary(file, text)
			}
			archive.Files = append(archive.Files, txtar.File{Name: file, Data: []byte(text)})
		}
		before = after
		golden := filepath.Join(trees, step.file+".txtar")
		text := txtar.Format(archive)
		if update() {
			if err := os.WriteFile(golden, text, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, text) {
			t.Errorf(
				"annex %s writes something else than %s; UPDATE=1 rewrites it\n%s",
				step.command,
				golden,
				diff.Diff("golden", want, "written now", text),
			)
		}
	}
}

// summary returns the relevant part of a file that was not written by hand.
func summary(file, text string) string {
	if file != "go.mod" {
		return "(written for this project)\n"
	}
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "// indirect\n") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// The output of the verbs compiles, passes vet, and passes its tests without any edits.
func TestScaffold_everyVerb_works(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a project and its tests")
	}
	project(t, "animal")
	for _, line := range []string{
		"init --domain demo.io",
		"create api --group animal --version v1alpha1 --kind Cat",
		"create admission --kind Cat",
		"create controller --kind Cat",
		"create subresource --kind Cat --name feed",
		"create version --kind Cat --version v1alpha2",
		"create version --kind Cat --version v1beta1 --hub",
		"create plugin",
	} {
		annex(t, line)
	}
	works(t, "build ./...", "vet ./...", "test ./...")
}

// The functions compile without edits, and pass their tests.
func TestCreateSubresource_everyForm_works(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a project and its tests")
	}
	project(t, "animal")
	annex(t, "init --domain demo.io")
	for _, line := range []string{"--kind Cat", "--kind Zoo --namespaced=false"} {
		annex(t, "create api --group animal --version v1alpha1 "+line)
	}
	for _, form := range scaffold.Forms() {
		if form != "action" {
			annex(t, "create subresource --kind Cat --form "+form)
		}
	}
	annex(t, "create subresource --kind Zoo --name screen --form attach")
	annex(t, "create subresource --kind Zoo --form logs")
	works(t, "mod tidy", "vet ./...", "test ./...")
}

// works fails the test unless the go command succeeds with the project.
func works(t *testing.T, commands ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, args := range commands {
		cmd := exec.CommandContext(ctx, "go", strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "module lookup disabled by GOPROXY=off") {
			t.Skipf("go %s: the module cache lacks modules of other tests", args)
		}
		if err != nil {
			t.Fatalf("go %s: %v\n%.4000s", args, err, out)
		}
	}
}

// A project has to build with the modules in the module cache, and go mod tidy must not change it.
func TestInit_moduleFiles_areTidy(t *testing.T) {
	if testing.Short() {
		t.Skip("loads all packages of a project")
	}
	project(t, "animal")
	annex(t, "init --domain demo.io")
	annex(t, "create api --group animal --version v1alpha1 --kind Cat")
	for _, args := range []string{"mod tidy -diff", "list -deps -test ./..."} {
		out, err := exec.Command("go", strings.Fields(args)...).CombinedOutput()
		if strings.Contains(string(out), "module lookup disabled by GOPROXY=off") {
			t.Skipf("go %s: the module cache lacks modules of other tests", args)
		}
		if err != nil {
			t.Errorf("go %s: %v\n%s", args, err, fmt.Sprintf("%.2000s", out))
		}
	}
}

// `make pgo` writes the profile of all samples.
func TestProfile_samples_equalProjects(t *testing.T) {
	samples := filepath.Join(root(t), "samples")
	dir := project(t, "zoo")
	annex(t, "init --domain demo.io")
	want, err := os.ReadFile(filepath.Join(dir, image.ProfileName))
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range []string{"animal", "cicd", "devops", "restaurant", "wardle"} {
		got, err := os.ReadFile(filepath.Join(samples, sample, image.ProfileName))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("samples/%s/%s is another one (%v); make pgo writes them anew", sample, image.ProfileName, err)
		}
	}
}
