package mistakes

import (
	"go/ast"
	"log"
	"os"
	"strings"
	"sync"
)

// Old is for programs of long ago.
//
// Deprecated: use New.
func Old() {}

// Copy copies a lock.
func Copy(m sync.Mutex) sync.Mutex { return m }

// Print prints a number as a string.
func Print() {
	printed("%s", 1)
	log.Printf("%d", "one")
}

// printed prints as log.Printf does.
func printed(format string, args ...any) { log.Printf(format, args...) }

// Parse uses a type that the standard library deprecates.
func Parse() *ast.Package { return nil }

// Trim does nothing with what a pure function returns.
func Trim(s string) {
	strings.TrimSpace(s)
	trimmed(s)
}

func trimmed(s string) string { return s[1:] }

func unused() {}

//lint:ignore U1000 a test of the directive
func ignored() {}

// Fail returns nothing after it has ended the program.
func Fail() int {
	log.Fatal("end")
	os.Exit(1)
	return 0
}

//lint:ignore SA4006 nothing is found here
var Used = forTests

func forTests() {}
