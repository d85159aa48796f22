package generate

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A result is reused exactly as long as all of its inputs are the same.
func TestRun_unchanged_isRecalled(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("GOWORK", "off")
	dir := evalSymlinks(t, t.TempDir())
	module := testModule(t)
	library, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	mod := regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(module.Mod, []byte("module example.com/m"))
	mod = bytes.ReplaceAll(mod, []byte("=> ../.."), []byte("=> "+library))
	mod = append(mod, "\nrequire example.com/other v0.0.0\nreplace example.com/other => ../other\n"...)
	for name, text := range map[string]string{
		"m/go.mod": string(mod),
		"m/go.sum": string(module.Sum),
		"m/shared/shared.go": "package shared\n\ntype Shared struct {\n\tA string `json:\"a\"`\n}\n\nfunc (in *Shared) DeepCopyInto(out " +
			"*Shared) { *out = *in }\n",
		"m/unrelated/x.go": "package unrelated\n",
		"other/go.mod":     "module example.com/other\n\ngo 1.26.0\n",
		"other/other.go": "package other\n\ntype Other struct {\n\tA string `json:\"a\"`\n}\n\nfunc (in *Other) DeepCopyInto(out *Other) " +
			"{ *out = *in }\n",
		"m/v1/types.go": `// +groupName=a.example.com
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"example.com/m/shared"
	"example.com/other"
)

type Thing struct {
	metav1.TypeMeta   ` + "`json:\",inline\"`" + `
	metav1.ObjectMeta ` + "`json:\"metadata,omitempty\"`" + `

	Shared shared.Shared ` + "`json:\"shared\"`" + `
	Other  other.Other   ` + "`json:\"other\"`" + `
}
`,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		writeText(t, file, text)
	}
	backdate(t, dir)

	o := Options{Dir: filepath.Join(dir, "m"), Worker: testWorker(), Module: module}
	made, err := Run(t.Context(), o)
	first := made.Packages
	if err != nil || len(first) != 1 || !first[0].Changed {
		t.Fatalf("%+v, %v", first, err)
	}
	generated := filepath.Join(dir, "m/v1", FileName)
	want, err := os.ReadFile(generated)
	if err != nil {
		t.Fatal(err)
	}
	o.Worker = []string{filepath.Join(dir, "no-worker")}
	again := func() bool {
		t.Helper()
		made, err := Run(t.Context(), o)
		packages := made.Packages
		if err == nil && len(packages) == 1 {
			got, err := os.ReadFile(generated)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("the file differs: %v", err)
			}
			return true
		}
		return false
	}
	if !again() {
		t.Fatal("nothing changed, and the worker was asked")
	}

	for name, test := range map[string]struct {
		file   string
		change func(text string) string
		hit    bool
	}{
		"the package":                         {"m/v1/types.go", suffix("\ntype More struct{}\n"), false},
		"a package that it imports":           {"m/shared/shared.go", suffix("\n// more\n"), false},
		"a package of a module in a folder":   {"other/other.go", suffix("\n// more\n"), false},
		"a file that is new":                  {"m/v1/more.go", suffix("package v1\n"), false},
		"a file in an imported package":       {"other/more.go", suffix("package other\n"), false},
		"a folder that is new":                {"m/v2/types.go", suffix("// +groupName=a.example.com\npackage v2\n"), false},
		"versions of dependencies":            {"m/go.mod", suffix("\n// more\n"), false},
		"sums of dependencies":                {"m/go.sum", suffix("\n"), false},
		"a module in a folder":                {"other/go.mod", suffix("\n// more\n"), false},
		"numbers of protobuf":                 {"m/v1/generated.proto", suffix("syntax = \"proto2\";\n"), false},
		"a file of another tool in its place": {"m/v1/" + FileName, func(string) string { return "package v1\n" }, false},
		"a test":                              {"m/v1/types_test.go", suffix("package v1\n"), true},
		"the generated file":                  {"m/v1/" + FileName, suffix("\n// by hand\n"), true},
		"a file that is not Go's":             {"m/v1/README.md", suffix("more"), true},
		"a package without references to it":  {"m/unrelated/y.go", suffix("package unrelated\n"), false},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, test.file)
			before, err := os.ReadFile(file)
			missing := os.IsNotExist(err)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			writeText(t, file, test.change(string(before)))
			if got := again(); got != test.hit {
				t.Errorf("used again: %v, want %v", got, test.hit)
			}
			if missing {
				os.Remove(file)
				os.Remove(filepath.Dir(file)) // if it is empty
			} else {
				writeText(t, file, string(before))
			}
			if !again() {
				t.Error("all is as it was, and the worker was asked")
			}
		})
	}
	t.Run("flags of the go command", func(t *testing.T) {
		t.Setenv("GOFLAGS", "-tags=more")
		if again() {
			t.Error("used again")
		}
	})
	t.Run("the file is not there", func(t *testing.T) {
		if err := os.Remove(generated); err != nil {
			t.Fatal(err)
		}
		if !again() {
			t.Error("the worker was asked")
		}
	})
	t.Run("no cache", func(t *testing.T) {
		o.Anew = true
		if again() {
			t.Error("used again")
		}
	})
}

// A file that changes while the worker runs may have been read before or after the change.
func TestRemember_fileChangesMeanwhile_keepsNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "types.go")
	writeText(t, file, "package v1\n")
	path := filepath.Join(dir, "cache", "record")
	for _, test := range []struct {
		start time.Time
		kept  bool
	}{{time.Now().Add(-time.Hour), false}, {time.Now().Add(time.Hour), true}} {
		if err := remember(path, "", moduleRequest{dir: dir}, response{Read: []string{file}}, test.start); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); (err == nil) != test.kept {
			t.Errorf("a run from %v: %v", test.start, err)
		}
	}
}

func suffix(more string) func(string) string {
	return func(text string) string { return text + more }
}

func writeText(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func evalSymlinks(t *testing.T, dir string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

// backdate sets the modification times of files to the past.
func backdate(t *testing.T, dir string) {
	t.Helper()
	past := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(path, dir) {
			return err
		}
		return os.Chtimes(path, past, past)
	})
	if err != nil {
		t.Fatal(err)
	}
}
