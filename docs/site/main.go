// Command site writes the project's pages as a web site of static files: the same Markdown that is read in the repository, with
// navigation and a search that needs no server. The site opens from a folder, too, and loads nothing from elsewhere.
//
//	site -root CHECKOUT -out FOLDER
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "../..", "the checkout")
	out := flag.String("out", "", "the folder to write, which is replaced")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: site -root CHECKOUT -out FOLDER")
		os.Exit(2)
	}
	s, err := read(*root)
	if err == nil {
		err = s.write(*out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pages, %d sections to search: open %s/index.html\n", len(s.pages), len(s.index.Sections), *out)
}
