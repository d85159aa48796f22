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

// library is the module that projects depend on.
const library = "github.com/annexapi/annex"

// releasedVersion returns the version in which this tool was released, or an empty string if it was built from a
// checkout.
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

// builtFrom returns the checkout from which this tool was compiled. It returns false if the checkout is unknown or no
// longer exists. The compiler records its path, unless -trimpath is set.
func builtFrom() (string, bool) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", false
	}
	dir := filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
	return dir, checkCheckout(dir) == nil
}

// checkCheckout returns an error if dir is not a checkout of the library.
func checkCheckout(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s has no go.mod", dir)
	case err != nil:
		return fmt.Errorf("%s: %w", dir, err)
	case modfile.ModulePath(text) != library:
		return fmt.Errorf("%s has the module %s, not %s", dir, modfile.ModulePath(text), library)
	}
	return nil
}

// checkoutVariable is the environment variable with the path of a checkout.
const checkoutVariable = "ANNEX_CHECKOUT"

// findCheckout returns the checkout for the replacement in go.mod: the named one, that of the environment, or the one
// from which this tool was built.
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
			return "", misuse("%s %s: %v: set it to the folder of a checkout of %s", by.name, by.dir, err, library)
		}
		return dir, nil
	}
	if dir, ok := builtFrom(); ok {
		return dir, nil
	}
	return "", misuse("Annex has no release yet, and the checkout from which this tool was built was not found, because it was moved or " +
		"the tool was built with -trimpath: set --replace DIR or $" + checkoutVariable)
}
