package kinds

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// known are the differences that testdata/differences.yaml lists.
type known struct{ entries []*entry }

type entry struct {
	// Kinds, Requests and Lines are regular expressions for the kind, the name of the request, and each line that only one of the
	// servers answers.
	Kinds, Requests, Lines string
	Reason                 string

	kinds, requests, lines *regexp.Regexp
	used                   bool
}

func readKnown(t *testing.T) *known {
	t.Helper()
	raw, err := os.ReadFile("testdata/differences.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k := &known{}
	if err := yaml.UnmarshalStrict(raw, &k.entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range k.entries {
		if e.Reason == "" || e.Lines == "" {
			t.Errorf("the difference of %s has no reason or no lines", e.Kinds)
		}
		e.kinds, e.requests, e.lines = regexp.MustCompile(e.Kinds), regexp.MustCompile(e.Requests), regexp.MustCompile(e.Lines)
	}
	return k
}

// has reports whether each line of a difference is listed.
func (k *known) has(kind, request, difference string) bool {
	var used []*entry
	for line := range strings.Lines(difference) {
		if line = strings.TrimRight(line, "\n"); strings.TrimSpace(line) == "" {
			continue
		}
		found := false
		for _, e := range k.entries {
			if e.kinds.MatchString(kind) && e.requests.MatchString(request) && e.lines.MatchString(line) {
				found, used = true, append(used, e)
				break
			}
		}
		if !found {
			return false
		}
	}
	for _, e := range used {
		e.used = true
	}
	return true
}

// checkUsed reports listed differences of a test that no longer occur. The test is discovery, openapi, or that of all other requests.
func (k *known) checkUsed(t *testing.T, test string) {
	t.Helper()
	for _, e := range k.entries {
		of := "kinds"
		if e.Requests == "^discovery$" || e.Requests == "^openapi$" {
			of = strings.Trim(e.Requests, "^$")
		}
		if of == test && !e.used {
			t.Errorf("the listed difference %q of %s no longer occurs: take it out of testdata/differences.yaml", e.Lines, e.Kinds)
		}
	}
}
