// Command release tags the modules that users import or install, and creates a file proxy of a release, so that it
// can be tried before it is pushed.
//
//	release tag VERSION            tag the checkout's HEAD
//	release proxy VERSION FOLDER   write the module proxy's files for these tags
//
// A module is released by a tag, and `go install MODULE@VERSION` rejects a go.mod with replace lines. The modules of
// workloads, of the tool and of the kubectl plugin have some, because they are developed beside the library. So their tags
// stand on commits above HEAD, which are on no branch: there they require releases, and their go.sum has the hashes of
// these releases. The tool requires the release of workloads, so it has a commit of its own, above that of workloads.
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
	library   = "github.com/annexapi/annex"
	workloads = "workloads"         // the folder of the module of that name
	tool      = "cmd/annex"         // the folder of the tool's module
	plugin    = "cmd/kubectl-annex" // the folder of the kubectl plugin's
)

// folders are the folders of the modules beside the library, in the order of their release.
var folders = []string{workloads, tool, plugin}

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
	head, err := git(top, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	commits := []string{head}
	for i, dir := range folders {
		if err := require(filepath.Join(checkout, dir), version, files); err != nil {
			return err
		}
		message := fmt.Sprintf("%s: require releases of %s\n\nThe commit of the tag %s, which is on no branch.", dir, version, tags(version)[i+1])
		if _, err := git(checkout, "commit", "--quiet", "--all", "--message", message); err != nil {
			return err
		}
		above, err := git(checkout, "rev-parse", "HEAD")
		if err != nil {
			return err
		}
		if err := serve(top, above, dir, library+"/"+dir, version, files); err != nil {
			return err
		}
		commits = append(commits, above)
	}
	for i, commit := range commits {
		if _, err := git(top, "tag", "--annotate", "--message", "Annex "+version, tags(version)[i], commit); err != nil {
			return err
		}
	}
	fmt.Printf("tagged; try it with make release-try, then publish it with\n  git push origin %s\n", strings.Join(tags(version), " "))
	return nil
}

// tags returns the tags of the library and of the modules of folders.
func tags(version string) []string {
	all := []string{version}
	for _, dir := range folders {
		all = append(all, dir+"/"+version)
	}
	return all
}

// require makes the module in dir require the releases, whose archives are in the proxy files, of the modules that it
// replaces by folders.
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
	var required []string
	for _, own := range []string{library, library + "/" + workloads} {
		if !slices.ContainsFunc(mod.Replace, func(r *modfile.Replace) bool { return r.Old.Path == own }) {
			continue
		}
		required = append(required, own)
		if err := errors.Join(mod.DropReplace(own, ""), mod.AddRequire(own, version)); err != nil {
			return err
		}
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

	path = filepath.Join(dir, "go.sum")
	sums, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
	for _, own := range required {
		served := filepath.Join(files, filepath.FromSlash(own), "@v", version)
		archive, err := dirhash.HashZip(served+".zip", dirhash.Hash1)
		if err != nil {
			return err
		}
		gomod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(served + ".mod") })
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", own, version, archive), fmt.Sprintf("%s %s/go.mod %s", own, version, gomod))
	}
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
	for i, dir := range folders {
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
