package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var try = flag.Bool("try", false, "install a release of this checkout's HEAD from a file proxy: slow")

const version = "v0.1.0-try"

// TestAReleaseCanBeInstalled releases HEAD in a clone, serves it from a file proxy, and
// does what a user does: with an empty module cache and no checkout, install the tool,
// make a project with it, and build that. Modules of others come out of this machine's
// module cache, or over the network.
func TestAReleaseCanBeInstalled(t *testing.T) {
	if !*try {
		t.Skip("slow: make release-try runs it")
	}
	home := t.TempDir()
	clone, files := filepath.Join(home, "clone"), filepath.Join(home, "proxy")
	do(t, "..", nil, "git", "clone", "--quiet", ".", clone)
	identity := []string{"GIT_AUTHOR_NAME=Annex", "GIT_AUTHOR_EMAIL=release@example.com", "GIT_COMMITTER_NAME=Annex", "GIT_COMMITTER_EMAIL=release@example.com"}
	do(t, clone, identity, "sh", "-c", `printf '\n## `+version+`\n' >> CHANGELOG.md && git commit -qam 'CHANGELOG: `+version+`'`)
	release := filepath.Join(home, "release")
	do(t, ".", []string{"GOWORK=off"}, "go", "build", "-o", release, ".")
	do(t, clone, identity, release, "tag", version)
	if out := do(t, clone, nil, "git", "status", "--porcelain"); out != "" {
		t.Errorf("tagging changed the checkout:\n%s", out)
	}
	do(t, clone, nil, release, "proxy", version, files)
	if out, err := exec.Command("git", "-C", clone, "show", tool+"/"+version+":"+tool+"/go.mod").CombinedOutput(); err != nil || strings.Contains(string(out), "\nreplace") {
		t.Fatalf("the tool's go.mod: %v\n%s", err, out)
	}

	settings := strings.Split(do(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY", "GOCACHE"), "\n")
	bin := filepath.Join(home, "bin")
	annex := filepath.Join(bin, "annex")
	env := []string{
		"HOME=" + home, "GOBIN=" + bin, "GOWORK=off", "GOCACHE=" + settings[2],
		"GOMODCACHE=" + filepath.Join(home, "modules"), "GOFLAGS=-modcacherw",
		"GOPROXY=file://" + files + ",file://" + filepath.Join(settings[0], "cache", "download") + "," + settings[1],
		"GONOSUMDB=" + library + ",*", // what is published nowhere has no place in the checksum database
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
	}
	do(t, home, env, "go", "install", library+"/"+tool+"@"+version)
	if out := do(t, home, env, annex, "version"); !strings.Contains(out, version) {
		t.Errorf("annex version prints %q, not %s", out, version)
	}
	project := filepath.Join(home, "demo")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	do(t, project, env, annex, "init", "--domain", "demo.io")
	do(t, project, env, annex, "create", "api", "--group", "animal", "--version", "v1alpha1", "--kind", "Cat")
	if mod, err := os.ReadFile(filepath.Join(project, "go.mod")); err != nil || !strings.Contains(string(mod), library+" "+version) || strings.Contains(string(mod), "replace") {
		t.Errorf("the project's go.mod does not just require the release: %v\n%s", err, mod)
	}
	do(t, project, env, "go", "build", "-o", "server", ".")
	if out := do(t, project, env, "./server", "describe"); !strings.Contains(out, "cats.animal.demo.io") {
		t.Errorf("the server describes itself as\n%s", out)
	}
}

// do runs a command, which must succeed, and returns what it prints, trimmed.
func do(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := command(dir, env, name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}
