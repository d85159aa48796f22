package typo_test

import (
	"testing"

	"github.com/annexapi/annex/internal/base/typo"
)

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"Minimum", "Minimum", 0},
		{"Minimun", "Minimum", 1},
		{"Minmum", "Minimum", 1},
		{"kitten", "sitting", 3},
		{"ab", "ba", 2},
	} {
		if got := typo.Distance(test.a, test.b); got != test.want {
			t.Errorf("from %q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"optional", "enum", "listType", "kubebuilder:default"}
	for name, want := range map[string]string{
		"optinal": "optional", "Optional": "optional", "lisTtype": "listType", "kubebuilderd:efault": "kubebuilder:default",
		"enm": "enum", "neum": "enum", "menu": "enum", "genus": "", "options": "", "custom": "", "": "",
	} {
		if got := typo.Nearest(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
