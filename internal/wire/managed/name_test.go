package managed

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
)

func TestNameOf_givenOrUserAgent(t *testing.T) {
	x := strings.Repeat("x", 126)
	for _, c := range []struct{ given, agent, want string }{
		{"kubectl", "other/1", "kubectl"},
		{"", "kubectl/v1.37 (linux)", "kubectl"},
		{"", "curl", "curl"},
		{"", "", ""},
		{"", "/1", ""},
		{"", "a\tb\x7fc\u0000/1", "abc"},
		{"", "größe/1", "größe"},
		{"", "a\xffb", "a\ufffdb"}, // each invalid byte becomes one replacement character
		{"", x + "yz", x + "yz"},
		{"", x + "yz0", x + "yz"},
		{"", x + "é", x + "é"},
		{"", x + "yé", x + "y"},
		{"", x + "yéz", x + "y"}, // the z would fit, but is behind the cut
		{"", x + "\a\a\ayz", x + "yz"},
		{"", x + "€z", x},
	} {
		got := NameOf(c.given, c.agent)
		if got != c.want {
			t.Errorf("%q, %q: %q, want %q", c.given, c.agent, got, c.want)
		}
		if !IsName(got) {
			t.Errorf("%q, %q: %q may not be given as a name", c.given, c.agent, got)
		}
	}
}

func TestIsName_printableAndShort(t *testing.T) {
	for _, name := range []string{"", "a", "a/b", "größe", strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("é", 64),
		strings.Repeat("é", 65), "a\n", "\x7f", "a\u00a0", "a\xff"} {
		if got, errs := IsName(name), validation.ValidateFieldManager(name, nil); got != (len(errs) == 0) {
			t.Errorf("%q: %t; upstream's validation says %v", name, got, errs)
		}
	}
}
