package generate

import (
	"strings"
	"testing"
	"unicode"
)

// mistakes returns likely misspellings of a name: a letter dropped, doubled, swapped with the next, or in the wrong
// case.
func mistakes(name string) []string {
	var all []string
	for i, c := range name {
		rest := name[i+1:]
		all = append(all, name[:i]+rest, name[:i+1]+string(c)+rest)
		if rest != "" && rest[0] != name[i] {
			all = append(all, name[:i]+rest[:1]+string(c)+rest[1:])
		}
		if other := unicode.ToUpper(c); other != c {
			all = append(all, name[:i]+string(other)+rest)
		}
	}
	return all
}

// crd/schema checks the markers within the family kubebuilder.
func TestMisspelt_everyTag(t *testing.T) {
	names, err := tagNames()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	asked := 0
	for _, name := range names {
		for _, mistake := range mistakes(name) {
			if known[mistake] || strings.HasPrefix(mistake, "kubebuilder:") || strings.HasPrefix(mistake, ":") {
				continue
			}
			asked++
			if _, meant := misspelt("+"+mistake+"=1", names); meant != "" {
				continue
			}
			_, unknown := validationTags("// +" + mistake + "=1")
			if len(unknown) == 0 {
				t.Errorf("+%s: it is not reported that +%s has no effect", mistake, name)
			} else if likeliest(mistake) == "" {
				t.Errorf("+%s: nothing is suggested for +%s", mistake, name)
			}
		}
	}
	if asked < 1000 {
		t.Errorf("only %d mistakes were made", asked)
	}
}

func TestMisspelt_commentsAndForeignTags(t *testing.T) {
	names, err := tagNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"+optional", "+optional if set", "+listType=map", "+kubebuilder:object:root=true", "+genclient:nonNamespaced",
		"+genclient:method=Scale,verb=update,subresource=scale", "+k8s:deepcopy-gen:interfaces=a.B", "+custom:marker=1",
		"+union", "+featureGate=A", "+build linux", "+experimental", "+resource:path=cats", "+protobuf.options.marshal=false",
		"+1", "+ default", "+required: by whom", "+options", "+structs", "+annex:domain=demo.io",
	} {
		if name, meant := misspelt(line, names); meant != "" {
			t.Errorf("%s: %s is taken for %s", line, name, meant)
		}
	}
}
