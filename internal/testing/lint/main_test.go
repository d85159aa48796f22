package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is found to testdata/found.txt")

// The module in testdata has a mistake for each kind of analyzer: with facts of its own packages, of the standard library, in tests
// and in tests of another package, with directives and without.
func TestFindings_mistakes(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Chdir("testdata/mistakes")
	found, err := findings([]string{"./..."}, false)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(found, "\n") + "\n"
	if *update {
		if err := os.WriteFile("../found.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("../found.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("found\n%s\nwant\n%s", got, want)
	}
}

func TestFindings_brokenPackage(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Chdir(t.TempDir())
	for _, test := range []struct{ name, source, want string }{
		{"does not parse", "package broken\nfunc", "broken.go:2:5"},
		{"imports nothing known", "package broken\nimport _ \"example.com/none\"\n", "example.com/none"},
		{"has a wrong type", "package broken\nvar _ string = 1\n", "check the types of example.com/broken: "},
	} {
		for name, text := range map[string]string{"go.mod": "module example.com/broken\n\ngo 1.26.0\n", "broken.go": test.source} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := findings([]string{"."}, false); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("a package that %s: %v, want an error with %q", test.name, err, test.want)
		}
	}
}
