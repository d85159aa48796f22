package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
)

// tag tags HEAD of the checkout at top. It changes no branch and pushes nothing.
func tag(top, version string) (err error) {
	if err := errors.Join(checkVersion(version), checkClean(top)); err != nil {
		return err
	}
	if err := checkOrder(top, version); err != nil {
		return err
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
	if _, err := notes(string(changelog), version); err != nil {
		return err
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
	date, err := git(top, "log", "-1", "--format=%cI", head) // of all commits and tags, for the same bytes every time
	if err != nil {
		return err
	}
	commits := []string{head}
	for i, dir := range folders {
		if err := require(filepath.Join(checkout, dir), version, files); err != nil {
			return err
		}
		message := fmt.Sprintf("%s: require releases of %s\n\nThe commit of the tag %s, which is on no branch.", dir, version, tags(version)[i+1])
		if _, err := gitAt(checkout, date, "commit", "--quiet", "--all", "--message", message); err != nil {
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
		if _, err := gitAt(top, date, "tag", "--annotate", "--message", "Annex "+version, tags(version)[i], commit); err != nil {
			return err
		}
	}
	return nil
}

func checkVersion(version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is not a version such as v0.1.0", version)
	}
	return nil
}

// checkClean rejects a checkout whose files are not those of HEAD.
func checkClean(top string) error {
	changes, err := git(top, "status", "--porcelain")
	if err == nil && changes != "" {
		err = fmt.Errorf("there are uncommitted changes, which a release would not have: commit them, or stash them\n%s", changes)
	}
	return err
}

// checkOrder rejects a version that is not above all that are tagged in the history of HEAD.
func checkOrder(top, version string) error {
	tagged, err := git(top, "tag", "--list", "--merged", "HEAD", "v*")
	if err != nil {
		return err
	}
	for older := range strings.FieldsSeq(tagged) {
		if semver.Compare(older, version) > 0 {
			return fmt.Errorf("%s is below %s, which is released in this history: choose a version above it", version, older)
		}
	}
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
