package scaffold

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gobuffalo/flect"
	"golang.org/x/mod/module"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"
)

// UsageError is an invalid name in the command line.
type UsageError struct{ message string }

func (e *UsageError) Error() string { return e.message }

func misuse(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

var (
	versionPattern = regexp.MustCompile(`^v[1-9][0-9]*((alpha|beta)[1-9]?[0-9]*)?$`)
	kindPattern    = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
)

// checkKind returns an error for an invalid kind.
func checkKind(kind string) error {
	switch {
	case kind == "":
		return misuse("--kind is missing: set it to the name of the kind, such as Cat")
	case !kindPattern.MatchString(kind):
		return misuse("--kind %q: a kind must be a Go type name in CamelCase, such as Cat", kind)
	case len(validation.IsDNS1123Label(strings.ToLower(kind))) > 0:
		return misuse("--kind %q: in lower case, a kind must be a DNS label of at most 63 letters and digits", kind)
	case strings.HasSuffix(kind, "List"):
		return misuse("--kind %q: names that end with List are reserved for lists", kind)
	case inEveryGroup(kind):
		return misuse("--kind %q: Kubernetes has a kind of this name in every group, and clients would confuse them: choose "+
			"another name", kind)
	case kind == "API":
		return misuse("--kind %q: API is the name of a generated function: choose another name", kind)
	}
	return nil
}

// inEveryGroup reports whether meta/v1 registers a kind of that name in every group, or outside groups.
func inEveryGroup(kind string) bool {
	scheme := runtime.NewScheme()
	group := schema.GroupVersion{Group: "example.com", Version: "v1"}
	metav1.AddToGroupVersion(scheme, group)
	return scheme.Recognizes(group.WithKind(kind)) || scheme.Recognizes(metav1.Unversioned.WithKind(kind))
}

// unexported returns a kind in camelCase: jenkinsService, httpRoute.
func unexported(kind string) string {
	upper := len(kind) - len(strings.TrimLeft(kind, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	if upper > 1 && upper < len(kind) && kind[upper] >= 'a' {
		upper-- // the last capital begins the next word
	}
	return strings.ToLower(kind[:upper]) + kind[upper:]
}

// checkVersion returns an error for an invalid version.
func checkVersion(version string) error {
	switch {
	case version == "":
		return misuse("--version is missing: set it to the API version, such as v1alpha1")
	case !versionPattern.MatchString(version):
		return misuse("--version %q: an API version must be v and a number, and optionally alpha or beta and a number, such as "+
			"v1alpha1", version)
	}
	return nil
}

// checkGroup returns an error for an invalid group, or first part of a group.
func checkGroup(group string) error {
	if group == "" {
		return misuse("--group is missing: set it to the API group, such as animal")
	}
	if problems := validation.IsDNS1123Subdomain(group); len(problems) > 0 {
		return misuse("--group %q: a group must be a DNS name in lower case, such as animal, or animal.demo.io for another domain", group)
	}
	return nil
}

// checkDomain returns an error for an invalid domain of groups.
func checkDomain(domain string) error {
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 || !strings.Contains(domain, ".") {
		return misuse("--domain %q: use a DNS name in lower case with a dot in it, such as demo.io", domain)
	}
	return nil
}

// checkLabel returns an error for a name that is not a DNS label.
func checkLabel(flag, what, name string) error {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return misuse("%s %q: %s must be a DNS label: at most 63 lower-case letters, digits and dashes", flag, name, what)
	}
	return nil
}

// checkModule returns an error for an invalid module path.
func checkModule(path string) error {
	if err := module.CheckImportPath(path); err != nil {
		return misuse("--repo %q: not a Go module path, such as example.com/animal", path)
	}
	return nil
}

// pluralOf returns the default resource of a kind, such as cats, by the rules of controller-tools, so that a marker
// without a resource means the same.
func pluralOf(kind string) string { return strings.ToLower(flect.Pluralize(kind)) }

// clientsGuess reports whether generated clients derive this resource from the name of the Go type.
func clientsGuess(kind, resource string) bool {
	return resource == namer.NewAllLowercasePluralNamer(nil).Name(&types.Type{Name: types.Name{Name: kind}})
}

// fileName returns the file of a kind, such as bigcat.go for BigCat. The go command must not take it for a test or a
// file of another system.
func fileName(kind string) string { return strings.ToLower(kind) + ".go" }
