// Command annex is the tool beside the library: it writes the code that a
// server made from Go types needs. See docs/reference/generate.md.
package main

import (
	"os"

	"github.com/annexapi/annex/cmd/annex/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
