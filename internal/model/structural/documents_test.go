package structural

import (
	"errors"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/base/yamlsize"
)

func TestParse_expandingYAML_isRefused(t *testing.T) {
	text := "x: &x " + strings.Repeat("x", 200_000) + "\ny:\n" + strings.Repeat("- *x\n", 5000)
	var large *yamlsize.TooLargeError
	if _, err := parse([]byte(text)); !errors.As(err, &large) {
		t.Errorf("a document of a gigabyte: %v", err)
	}
	if doc, err := parse([]byte("a: &a b\nc: *a")); err != nil || doc["c"] != "b" {
		t.Errorf("a small one: %v, %v", doc, err)
	}
}
