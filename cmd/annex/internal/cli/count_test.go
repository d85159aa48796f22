package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// A kind costs its author a hand-written file, a registration, and a generated file for the whole package. -v prints
// the table.
func TestKindCost_filesAndLines(t *testing.T) {
	samples := filepath.Join(root(t), "samples")
	t.Logf("%-9s %-10s %-28s %5s   %s", "sample", "kind", "file by hand", "lines", "its package: generated files (lines)")
	for _, kind := range []struct{ sample, name, resource, file string }{
		{"wardle", "Flunder", "flunders", "apis/wardle/v1beta1/flunder.go"},
		{"wardle", "Fischer", "fischers", "apis/wardle/v1alpha1/fischer.go"},
		{"animal", "Cat", "cats", "apis/animal/v1alpha1/cat.go"},
		{"cicd", "JenkinsService", "jenkinsservices", "apis/autobusi/v1alpha/jenkinsservice.go"},
		{"sqltable", "Order", "orders", "apis/orders/v1/order.go"},
		{"sqltable", "Customer", "customers", "apis/orders/v1/order.go"},
		{"ownjournal", "Note", "notes", "apis/notes/v1/note.go"},
	} {
		dir := filepath.Join(samples, kind.sample)
		declared, generated, lines := declarations(t, filepath.Dir(filepath.Join(dir, kind.file)), kind.name)
		if len(declared) != 1 || filepath.Base(declared[0]) != filepath.Base(kind.file) {
			t.Errorf("%s: kind %s is declared in %v, want %s alone", kind.sample, kind.name, declared, kind.file)
		}
		if generated != 1 {
			t.Errorf("%s: the package of %s has %d generated files, want 1", kind.sample, kind.name, generated)
		}
		if n := registrations(t, dir, `]("`+kind.resource+`", `); n != 1 {
			t.Errorf("%s: %s is registered in %d lines, want 1", kind.sample, kind.resource, n)
		}
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(kind.file)))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-9s %-10s %-28s %5d   %d (%d)", kind.sample, kind.name, kind.file, bytes.Count(text, []byte("\n")), generated, lines)
	}
}

// declarations returns the hand-written files that declare the kind, its spec, its status or its list, and counts the
// generated Go files beside them and their lines.
func declarations(t *testing.T, dir, kind string) (declared []string, generated, lines int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() == generate.FileName || bytes.Contains(text, []byte("DO NOT EDIT")) {
			generated++
			lines += bytes.Count(text, []byte("\n"))
			continue
		}
		for _, suffix := range []string{"", "Spec", "Status", "List"} {
			if bytes.Contains(text, []byte("\ntype "+kind+suffix+" struct")) {
				declared = append(declared, e.Name())
				break
			}
		}
	}
	return declared, generated, lines
}

// registrations counts the lines of a project, except for tests, that begin the registration of a kind.
func registrations(t *testing.T, dir, of string) int {
	t.Helper()
	n := 0
	for _, pattern := range []string{"*.go", "server/*.go"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "annex.KindOf[") && strings.Contains(line, of) {
					n++
				}
			}
		}
	}
	return n
}
