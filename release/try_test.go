package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var try = flag.Bool("try", false, "install a release of this checkout's HEAD from a file proxy: slow")

const version = "v0.1.0-try"

// TestRelease_install releases HEAD in a clone, serves it from a file proxy, and does what users do: with an empty
// module cache and no checkout, they install the tool, and use it in a project. Modules of others come from this
// machine's module cache, or over the network.
func TestRelease_install(t *testing.T) {
	if !*try {
		t.Skip("slow: make release-try runs it")
	}
	u := newUser(t)
	u.do(t, u.home, "go", "install", library+"/"+tool+"@"+version)
	if out := u.do(t, u.home, "annex", "version"); !strings.Contains(out, version) {
		t.Errorf("annex version prints %q, not %s", out, version)
	}
	u.do(t, u.home, "go", "install", library+"/"+plugin+"@"+version)
	if out := u.do(t, u.home, "kubectl-annex", "logs", "--help"); !strings.Contains(out, "kubectl annex logs") {
		t.Errorf("kubectl-annex logs --help prints\n%s", out)
	}
	t.Run("a new project", u.beginsAProject)
	t.Run("a project of kubebuilder's", u.servesAKubebuilderProject)
	t.Run("a suite of tests", u.movesASuite)
	t.Run("types of cert-manager, gateway-api and cluster-api", u.servesTypesOfOthers)
}

// beginsAProject creates a project with the tool, and builds it.
func (u user) beginsAProject(t *testing.T) {
	project := filepath.Join(u.home, "demo")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	u.do(t, project, "annex", "init", "--domain", "demo.io")
	u.do(t, project, "annex", "create", "api", "--group", "animal", "--version", "v1alpha1", "--kind", "Cat")
	u.requiresTheRelease(t, project)
	u.do(t, project, "go", "build", "-o", "server", ".")
	if out := u.do(t, project, "./server", "describe"); !strings.Contains(out, "cats.animal.demo.io") {
		t.Errorf("the server describes itself as\n%s", out)
	}
}

// servesAKubebuilderProject follows the page docs/howto/kubebuilder.md, in a project for which controller-gen has
// generated methods and a definition. The project's own test compares the served objects with the definition.
func (u user) servesAKubebuilderProject(t *testing.T) {
	project := filepath.Join(u.home, "guestbook")
	if err := os.CopyFS(project, os.DirFS("testdata/guestbook")); err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(project, "cmd", "apiserver")
	later := filepath.Join(u.home, "apiserver") // the page writes it last
	if err := os.Rename(server, later); err != nil {
		t.Fatal(err)
	}
	u.do(t, project, "go", "mod", "tidy")
	u.do(
		t,
		project,
		"go",
		"run",
		"sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0",
		"object",
		"crd",
		"paths=./api/...",
		"output:crd:dir=config/crd",
	)
	u.do(t, project, "go", "vet", "./...")
	methods, err := os.ReadFile(filepath.Join(project, "api", "v1", "zz_generated.deepcopy.go"))
	if err != nil {
		t.Fatal(err)
	}

	u.do(t, project, "annex", "require")
	u.requiresTheRelease(t, project)
	u.do(t, project, "annex", "generate", "./api/...")
	if err := os.Rename(later, server); err != nil {
		t.Fatal(err)
	}
	u.do(t, project, "go", "build", "-o", "server", "./cmd/apiserver")
	if out := u.do(t, project, "./server", "describe"); !strings.Contains(out, "guestbooks.webapp.example.com") {
		t.Errorf("the server describes itself as\n%s", out)
	}
	if now, err := os.ReadFile(
		filepath.Join(project, "api", "v1", "zz_generated.deepcopy.go"),
	); err != nil ||
		string(now) != string(methods) {
		t.Errorf("what controller-gen wrote has changed: %v", err)
	}
	u.do(t, project, "go", "mod", "tidy") // for its tests
	u.requiresTheRelease(t, project)
	t.Log(u.do(t, project, "go", "test", "-count=1", "./..."))
}

// movesASuite follows the page docs/howto/envtest.md: with the programs of annex envtest first, and then in the test's process.
func (u user) movesASuite(t *testing.T) {
	project := filepath.Join(u.home, "suite")
	if err := os.CopyFS(project, os.DirFS("testdata/suite")); err != nil {
		t.Fatal(err)
	}
	u.do(t, project, "go", "mod", "tidy")
	assets := u.do(t, project, "annex", "envtest")
	before := user{u.home, append(slices.Clone(u.env), "KUBEBUILDER_ASSETS="+assets)}
	t.Log(before.do(t, project, "go", "test", "-count=1", "./..."))

	u.do(t, project, "go", "get", library+"/"+workloads+"@"+version)
	suite := filepath.Join(project, "suite_test.go")
	text, err := os.ReadFile(suite)
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.ReplaceAll(string(text), "sigs.k8s.io/controller-runtime/pkg/envtest", library+"/"+workloads+"/envtest")
	if err := os.WriteFile(suite, []byte(moved), 0o644); err != nil {
		t.Fatal(err)
	}
	u.do(t, project, "go", "mod", "tidy")
	u.requiresTheRelease(t, project)
	t.Log(u.do(t, project, "go", "test", "-count=1", "./..."))
}

// servesTypesOfOthers drops Annex into the module that compares foreign types with their definitions.
func (u user) servesTypesOfOthers(t *testing.T) {
	project := filepath.Join(u.home, "compat")
	if err := os.MkdirAll(project, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum", "compat_test.go"} {
		data, err := os.ReadFile(filepath.Join("..", "compat", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(project, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	u.do(t, project, "go", "mod", "edit", "-dropreplace", library, "-droprequire", library)
	u.do(t, project, "annex", "require")
	u.requiresTheRelease(t, project)
	for facts, types := range map[string]string{
		"certmanager": "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1",
		"gateway":     "sigs.k8s.io/gateway-api/apis/v1",
		"cluster":     "sigs.k8s.io/cluster-api/api/core/v1beta2",
	} {
		u.do(t, project, "annex", "generate", "--for", types, "./facts/"+facts)
	}
	t.Log(u.do(t, project, "go", "test", "-count=1", "-tags", "compat", "-v", "-timeout", "30m", "."))
}

func (u user) requiresTheRelease(t *testing.T, project string) {
	t.Helper()
	if mod, err := os.ReadFile(
		filepath.Join(project, "go.mod"),
	); err != nil || !strings.Contains(string(mod), library+" "+version) ||
		strings.Contains(string(mod), "replace "+library) {
		t.Errorf("the project's go.mod does not just require the release: %v\n%s", err, mod)
	}
}

// user is a user of a release, with a home directory and no checkout.
type user struct {
	home string
	env  []string
}

// newUser releases HEAD.
func newUser(t *testing.T) user {
	t.Helper()
	home := t.TempDir()
	clone, files := filepath.Join(home, "clone"), filepath.Join(home, "proxy")
	do(t, "..", nil, "git", "clone", "--quiet", ".", clone)
	identity := []string{
		"GIT_AUTHOR_NAME=Annex",
		"GIT_AUTHOR_EMAIL=release@example.com",
		"GIT_COMMITTER_NAME=Annex",
		"GIT_COMMITTER_EMAIL=release@example.com",
	}
	do(t, clone, identity, "sh", "-c", `printf '\n## `+version+`\n' >> CHANGELOG.md && git commit -qam 'CHANGELOG: `+version+`'`)
	release := filepath.Join(home, "release")
	do(t, ".", []string{"GOWORK=off"}, "go", "build", "-o", release, ".")
	do(t, clone, identity, release, "tag", version)
	if out := do(t, clone, nil, "git", "status", "--porcelain"); out != "" {
		t.Errorf("tagging changed the checkout:\n%s", out)
	}
	do(t, clone, nil, release, "proxy", version, files)
	if out, err := exec.Command("git", "-C", clone, "show", tool+"/"+version+":"+tool+"/go.mod").
		CombinedOutput(); err != nil ||
		strings.Contains(string(out), "\nreplace") {
		t.Fatalf("the tool's go.mod: %v\n%s", err, out)
	}
	settings := strings.Split(do(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY", "GOCACHE"), "\n")
	bin := filepath.Join(home, "bin")
	return user{home, []string{
		"HOME=" + home, "GOBIN=" + bin, "GOWORK=off", "GOCACHE=" + settings[2],
		"GOMODCACHE=" + filepath.Join(home, "modules"), "GOFLAGS=-modcacherw -trimpath", // the next run finds what this one has compiled
		"GOPROXY=file://" + files + ",file://" + filepath.Join(settings[0], "cache", "download") + "," + settings[1],
		"GONOSUMDB=" + library + ",*", // unpublished modules are not in the checksum database
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
	}}
}

// do runs a command of the user's.
func (u user) do(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	if name == "annex" || name == "kubectl-annex" {
		name = filepath.Join(u.home, "bin", name) // exec looks for programs in the PATH of this process
	}
	return do(t, dir, u.env, name, args...)
}

// do runs a command, which must succeed, and returns its output, trimmed.
func do(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := command(dir, env, name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}
