package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var (
	tried = flag.String("output", "", "the output of a release, which is installed from nothing else: slow")
	all   = flag.Bool("all", false, "use the installed tool in projects of others, too: slower")
)

// TestRelease_unpack does what users without Go do: they compare checksums, unpack archives, and run the programs.
func TestRelease_unpack(t *testing.T) {
	u := newUser(t)
	u.unpacks(t)
	for _, program := range []string{"annex", "kubectl-annex"} {
		want := strings.TrimSpace(read(t, u.output, "completions", program+".bash"))
		if out := u.do(t, u.home, program, "completion", "bash"); out != want {
			t.Errorf("the completions of %s are not what it prints", program)
		}
		script := "source " + filepath.Join(u.output, "completions", program+".bash") + " && complete -p " + program
		if _, err := exec.LookPath("bash"); err == nil {
			u.do(t, u.home, "bash", "-c", script)
		}
	}
	if out := u.do(t, u.home, "kubectl-annex", "logs", "--help"); !strings.Contains(out, "kubectl annex logs") {
		t.Errorf("kubectl-annex logs --help prints\n%s", out)
	}
	u.usesKrew(t)
}

// usesKrew installs the plugin with krew, whose index does not have it yet, from the archive and the manifest.
func (u user) usesKrew(t *testing.T) {
	u.do(t, u.home, "go", "install", "sigs.k8s.io/krew/cmd/krew@v0.5.0")
	archive := filepath.Join(u.output, "kubectl-annex_"+u.version+"_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz")
	manifest := filepath.Join(u.output, "annex.krew.yaml")
	u.do(t, u.home, filepath.Join(u.home, "bin", "krew"), "install", "--manifest", manifest, "--archive", archive)
	if out := u.do(t, u.home, filepath.Join(u.home, ".krew", "bin", "kubectl-annex"), "--help"); !strings.Contains(out, "kubectl annex") {
		t.Errorf("the plugin that krew installed prints\n%s", out)
	}
}

// TestRelease_install does what users with Go do: with an empty module cache and no checkout, they install the tool from
// the proxy, and use it in a project. Modules of others come from this machine's module cache, or over the network.
func TestRelease_install(t *testing.T) {
	u := newUser(t)
	u.do(t, u.home, "go", "install", library+"/"+tool+"@latest")
	if out := u.do(t, u.home, "annex", "version"); !strings.Contains(out, u.version) {
		t.Errorf("annex version prints %q, not %s", out, u.version)
	}
	u.do(t, u.home, "go", "install", library+"/"+plugin+"@latest")
	if out := u.do(t, u.home, "kubectl-annex", "logs", "--help"); !strings.Contains(out, "kubectl annex logs") {
		t.Errorf("kubectl-annex logs --help prints\n%s", out)
	}
	if !*all {
		return
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
	before := u
	before.env = append(slices.Clone(u.env), "KUBEBUILDER_ASSETS="+assets)
	t.Log(before.do(t, project, "go", "test", "-count=1", "./..."))

	u.do(t, project, "go", "get", library+"/"+workloads+"@"+u.version)
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
	); err != nil || !strings.Contains(string(mod), library+" "+u.version) ||
		strings.Contains(string(mod), "replace "+library) {
		t.Errorf("the project's go.mod does not just require the release: %v\n%s", err, mod)
	}
}

// user is a user of a release, with a home directory and no checkout.
type user struct {
	home, output, version string
	env                   []string
}

func newUser(t *testing.T) user {
	t.Helper()
	if *tried == "" {
		t.Skip("slow: make release-dry and make release-try run it")
	}
	output, err := filepath.Abs(*tried)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	settings := strings.Split(do(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY", "GOCACHE"), "\n")
	bin := filepath.Join(home, "bin")
	return user{home, output, strings.TrimSpace(read(t, output, "VERSION")), []string{
		"HOME=" + home, "KREW_ROOT=" + filepath.Join(home, ".krew"), "GOBIN=" + bin, "GOWORK=off", "GOCACHE=" + settings[2],
		"GOMODCACHE=" + filepath.Join(home, "modules"), "GOFLAGS=-modcacherw -trimpath", // the next run finds what this one has compiled
		"GOPROXY=" + proxies(filepath.Join(output, "proxy"), filepath.Join(settings[0], "cache", "download"), settings[1]),
		"GONOSUMDB=" + library + ",*", // unpublished modules are not in the checksum database
		"CGO_ENABLED=0", "ANNEX_CHECKOUT=",
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
	}}
}

// unpacks compares the checksums, and unpacks the programs of this platform.
func (u user) unpacks(t *testing.T) {
	t.Helper()
	hasChecksums(t, u.output)
	bin := filepath.Join(u.home, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"annex", "kubectl-annex"} {
		archive := filepath.Join(u.output, program+"_"+u.version+"_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz")
		do(t, bin, nil, "tar", "-xzf", archive, program)
	}
	if out := u.do(t, u.home, "annex", "version"); !strings.Contains(out, u.version) {
		t.Errorf("annex version prints %q, not %s", out, u.version)
	}
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
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}
