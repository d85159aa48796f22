// Command release tags the modules that users import or install, and creates a file proxy of a release, so that it
// can be tried before it is pushed.
//
//	release tag VERSION            tag the checkout's HEAD
//	release proxy VERSION FOLDER   write the module proxy's files for these tags
//
// A module is released by a tag, and `go install MODULE@VERSION` rejects a go.mod with replace lines. The modules of
// the tool and of the kubectl plugin have one, because they are developed beside the library. So their tags stand on
// a commit above HEAD, which is on no branch: there they require the library's release, and their go.sum has that
// release's hash.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

const (
	library = "github.com/annexapi/annex"
	tool    = "cmd/annex"         // the folder of the tool's module
	plugin  = "cmd/kubectl-annex" // the folder of the kubectl plugin's
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	top, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "tag":
		return tag(top, args[1])
	case len(args) == 3 && args[0] == "proxy":
		return proxy(top, args[1], args[2])
	}
	return errors.New("usage: release tag VERSION | release proxy VERSION FOLDER")
}

// tag tags HEAD of the checkout at top. It changes no branch and pushes nothing.
func tag(top, version string) (err error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	if changes, err := git(top, "status", "--porcelain"); err != nil {
		return err
	} else if changes != "" {
		return fmt.Errorf("there are uncommitted changes:\n%s", changes)
	}
	for _, name := range tags(version) {
		if found, err := git(top, "tag", "--list", name); err != nil {
			return err
		} else if found != "" {
			return fmt.Errorf("the tag %s exists", name)
		}
	}
	changelog, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(changelog), "\n## "+version+"\n") {
		return fmt.Errorf("CHANGELOG.md has no section %q", "## "+version)
	}

	work, err := os.MkdirTemp("", "annex-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	checkout, files := filepath.Join(work, "checkout"), filepath.Join(work, "proxy")
	if _, err := git(top, "worktree", "add", "--detach", checkout, "HEAD"); err != nil {
		return err
	}
	defer func() {
		_, removed := git(top, "worktree", "remove", "--force", checkout)
		err = errors.Join(err, removed)
	}()

	// Create the library's archive: the hash in their go.sum is the archive's.
	if err := serve(top, "HEAD", "", library, version, files); err != nil {
		return err
	}
	for _, dir := range []string{tool, plugin} {
		if err := require(filepath.Join(checkout, dir), version, files); err != nil {
			return err
		}
	}
	if _, err := git(
		checkout,
		"commit",
		"--quiet",
		"--all",
		"--message",
		fmt.Sprintf(
			"cmd: requires %s %s\n\nThe commit of the tags %s, which is on no branch.",
			library,
			version,
			strings.Join(tags(version)[1:], " and "),
		),
	); err != nil {
		return err
	}
	head, err := git(top, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	above, err := git(checkout, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	for i, commit := range []string{head, above, above} {
		if _, err := git(top, "tag", "--annotate", "--message", "Annex "+version, tags(version)[i], commit); err != nil {
			return err
		}
	}
	fmt.Printf("tagged; try it with make release-try, then publish it with\n  git push origin %s\n", strings.Join(tags(version), " "))
	return nil
}

// tags returns the tags of the library, of the tool and of the plugin.
func tags(version string) []string {
	return []string{version, tool + "/" + version, plugin + "/" + version}
}

// require makes the module in dir require the library's release, whose archive is in the proxy files, instead of the
// folder beside it.
func require(dir, version, files string) error {
	path := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(path, text, nil)
	if err != nil {
		return err
	}
	if err := mod.DropReplace(library, ""); err != nil {
		return err
	}
	if err := mod.AddRequire(library, version); err != nil {
		return err
	}
	mod.Cleanup()
	if len(mod.Replace) > 0 {
		return fmt.Errorf("%s replaces %s, so go install would fail", path, mod.Replace[0].Old.Path)
	}
	if text, err = mod.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}

	served := filepath.Join(files, filepath.FromSlash(library), "@v", version)
	archive, err := dirhash.HashZip(served+".zip", dirhash.Hash1)
	if err != nil {
		return err
	}
	gomod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(served + ".mod") })
	if err != nil {
		return err
	}
	path = filepath.Join(dir, "go.sum")
	sums, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := append(strings.Split(strings.TrimSpace(string(sums)), "\n"),
		fmt.Sprintf("%s %s %s", library, version, archive), fmt.Sprintf("%s %s/go.mod %s", library, version, gomod))
	slices.Sort(lines)
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// proxy writes all modules into a folder that GOPROXY=file://FOLDER can name.
func proxy(top, version, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if err := serve(top, tags(version)[0], "", library, version, folder); err != nil {
		return err
	}
	for i, dir := range []string{tool, plugin} {
		if err := serve(top, tags(version)[i+1], dir, library+"/"+dir, version, folder); err != nil {
			return err
		}
	}
	return nil
}

// serve writes a module, which is in dir of the repository's revision, into folder, in the layout of a proxy.
func serve(top, revision, dir, path, version, folder string) error {
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	at := filepath.Join(folder, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	mod, err := command(top, nil, "git", "show", revision+":"+filepath.ToSlash(filepath.Join(dir, "go.mod"))).Output()
	if err != nil {
		return fmt.Errorf("go.mod at %s: %w", revision, err)
	}
	when, err := git(top, "log", "-1", "--format=%cI", revision)
	if err != nil {
		return err
	}
	committed, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": committed.UTC()})
	if err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	err = zip.CreateFromVCS(archive, module.Version{Path: path, Version: version}, top, revision, dir)
	if err := errors.Join(err, archive.Close()); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func command(dir string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	return cmd
}

func git(dir string, args ...string) (string, error) {
	out, err := command(dir, nil, "git", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
