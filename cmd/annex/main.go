// Command annex is the tool beside the library: it generates the code for servers made from Go types. See
// docs/reference/generate.md.
package main

import (
	_ "embed"
	"os"

	"github.com/annexapi/annex/cmd/annex/internal/cli"
	"github.com/annexapi/annex/cmd/annex/internal/standin"
)

var (
	//go:embed go.mod
	goMod []byte
	//go:embed go.sum
	goSum []byte
)

func main() {
	if code, ok := standin.Main(os.Args, os.Stdout, os.Stderr); ok {
		os.Exit(code)
	}
	os.Exit(cli.Main(cli.Module{Mod: goMod, Sum: goSum}, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
