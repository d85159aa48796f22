package cli

import (
	"testing"

	"github.com/annexapi/annex/internal/testing/clidoc"
)

// The flags of the page are those of the program.
func TestReference(t *testing.T) {
	t.Parallel()
	reference := clidoc.Reference{Pages: []string{"../../../docs/reference/cli.md"}, By: "make generate", Group: flagGroup}
	reference.Check(t, rootCommand(Program{Name: "SERVER"}))
}
