package scaffold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// library is the module that projects are made with.
const library = "github.com/annexapi/annex"

// releasedVersion is the version that this tool was released with, or empty if it
// was built from a checkout.
func releasedVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if v := info.Main.Version; semver.IsValid(v) && semver.Build(v) == "" && !module.IsPseudoVersion(v) {
		return v
	}
	return ""
}

// builtFrom returns the checkout whose source this tool was compiled from, or
// false if that is not known or no longer there: the compiler notes the place,
// unless it is told to trim it.
func builtFrom() (string, bool) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", false
	}
	dir := filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
	return dir, checkCheckout(dir) == nil
}

// checkCheckout finds out why dir is no checkout of the library.
func checkCheckout(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s has no go.mod", dir)
	case err != nil:
		return fmt.Errorf("%s: %w", dir, err)
	case modfile.ModulePath(text) != library:
		return fmt.Errorf("%s holds the module %s, not %s", dir, modfile.ModulePath(text), library)
	}
	return nil
}

// checkoutVariable is the environment variable that names a checkout.
const checkoutVariable = "ANNEX_CHECKOUT"

// findCheckout returns the checkout that go.mod is to point to: the one named, that of
// the environment, or the one that this tool was built from.
func findCheckout(named string) (string, error) {
	for _, by := range []struct{ name, dir string }{{"--replace", named}, {"$" + checkoutVariable, os.Getenv(checkoutVariable)}} {
		if by.dir == "" {
			continue
		}
		dir, err := filepath.Abs(by.dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", by.name, err)
		}
		if err := checkCheckout(dir); err != nil {
			return "", misuse("%s %s: %v: name the folder of a checkout of %s", by.name, by.dir, err, library)
		}
		return dir, nil
	}
	if dir, ok := builtFrom(); ok {
		return dir, nil
	}
	return "", misuse("Annex has no release yet, and the checkout that this tool was built from cannot be found (it was moved, or the " +
		"tool built with -trimpath): name one with --replace DIR, or $" + checkoutVariable)
}
