package cli

import (
	"path/filepath"
	"testing"

	"github.com/annexapi/annex/internal/testing/clidoc"
)

// The pages list the flags of the tool.
func TestReference(t *testing.T) {
	t.Parallel()
	reference := clidoc.Reference{By: "make generate"}
	for _, page := range []string{"tool.md", "generate.md", "lint.md", "crd.md"} {
		reference.Pages = append(reference.Pages, filepath.Join(root(t), "docs", "reference", page))
	}
	reference.Check(t, newRoot(Module{}))
}
