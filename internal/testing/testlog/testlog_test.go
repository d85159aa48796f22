package testlog

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// logging is a set of tests that log and end with a code.
type logging int

func (code logging) Run() int {
	for i := range kept + 1 {
		klog.Infof("line %d.", i)
	}
	return int(code)
}

func TestQuiet_printsOnlyOnFailure(t *testing.T) {
	t.Setenv("ANNEX_TEST_LOG", "")
	t.Cleanup(klog.ClearLogger)
	var out strings.Builder
	if code := (quiet{logging(0), &out}).Run(); code != 0 || out.String() != "" {
		t.Errorf("tests that pass end with %d and print %q", code, out.String())
	}
	if code := (quiet{logging(1), &out}).Run(); code != 1 {
		t.Errorf("tests that fail end with %d", code)
	}
	for text, want := range map[string]bool{
		"line 0.": false, "line 1.": true, fmt.Sprintf("line %d.", kept): true, "1 lines before": true,
	} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("a failure prints %s: %t, not %t\n%s", text, !want, want, out.String())
		}
	}
}
