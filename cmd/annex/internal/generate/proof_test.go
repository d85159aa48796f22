package generate

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

// The packages of k8s.io/api are copied without their generated protobuf code, generated anew and compared with the
// originals: see testdata/protobufproof. With ANNEX_PROTOBUF_PROOF=all the test does this for every package,
// otherwise for core/v1 and one package with rare features that core/v1 lacks.
func TestProtobuf_equalsGogo(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles k8s.io/api/core/v1 twice")
	}
	original := moduleDir(t, "k8s.io/api")
	packages := []string{"core/v1", "authentication/v1"}
	if os.Getenv("ANNEX_PROTOBUF_PROOF") == "all" {
		packages = protobufPackages(t, original)
	}
	dir := copyModule(t)
	for _, p := range packages {
		copyTypes(t, filepath.Join(original, p), filepath.Join(dir, p))
	}
	start := time.Now()
	runIn(t, dir)
	t.Logf("generated %d packages in %.1f s", len(packages), time.Since(start).Seconds())
	start = time.Now()
	for _, p := range packages {
		sameProto(t, filepath.Join(original, p), filepath.Join(dir, p))
	}
	program, err := os.ReadFile("testdata/protobufproof/proof_test.go")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "proof_test.go"), program)
	write(t, filepath.Join(dir, "pairs_test.go"), pairs(t, original, packages))
	out := goIn(t, dir, append([]string{"test", "-count=1", "-v"}, strings.Fields(os.Getenv("ANNEX_PROTOBUF_ARGS"))...)...)
	t.Logf("compiled and compared in %.1f s\n%s", time.Since(start).Seconds(), out)
}

// The same types without their tags, but beside the .proto file of go-to-protobuf, result in the same code.
func TestProtobuf_numbersOfProtoFile(t *testing.T) {
	if testing.Short() {
		t.Skip("loads k8s.io/api/core/v1 several times")
	}
	original := filepath.Join(moduleDir(t, "k8s.io/api"), "core/v1")
	dir := copyModule(t)
	types := filepath.Join(dir, "core/v1")
	copyTypes(t, original, types)
	runIn(t, dir)
	tagged := read(t, filepath.Join(types, FileName))

	proto := read(t, filepath.Join(original, protobuf.FileName))
	write(t, filepath.Join(types, protobuf.FileName), proto)
	source := filepath.Join(types, "types.go")
	// One field has a protobuf name that only its tag holds: Probe.ProbeHandler.
	stripped := regexp.MustCompile(` protobuf:"[^"-]*"`).ReplaceAllFunc(read(t, source), func(tag []byte) []byte {
		if bytes.Contains(tag, []byte("name=handler\"")) {
			return tag
		}
		return nil
	})
	write(t, source, stripped)
	runIn(t, dir)
	if d := diff.Diff("with tags", tagged, "with numbers from the .proto file", read(t, filepath.Join(types, FileName))); d != nil {
		t.Errorf("%s", d)
	}
	sameProto(t, original, types)
}

// copyModule creates an empty module with the requirements of this one.
func copyModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.com/copy"))
	write(t, filepath.Join(dir, "go.mod"), bytes.ReplaceAll(mod, []byte("=> ../..\n"), []byte("=> "+root+"\n")))
	write(t, filepath.Join(dir, "go.sum"), read(t, "../../go.sum"))
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOWORK", "off")
	return dir
}

// copyTypes copies a package without its generated files.
func copyTypes(t *testing.T, from, to string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(from, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "generated.") || strings.HasPrefix(name, "zz_generated.") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text := read(t, file)
		if name == "doc.go" {
			// The group core is empty, which generate does not accept as a group. As a package of shared types, the
			// copy gets deep copies and protobuf.
			text = regexp.MustCompile(`(?m)^// \+groupName=.*$`).ReplaceAll(text, nil)
		} else {
			text = withoutRules(text)
		}
		write(t, filepath.Join(to, name), text)
	}
}

// withoutRules removes the validation tags, whose functions are in other packages.
func withoutRules(text []byte) []byte {
	return regexp.MustCompile(`(?m)^[ \t]*// \+k8s:.*\n`).ReplaceAllFunc(text, func(line []byte) []byte {
		if bytes.Contains(line, []byte("+k8s:deepcopy-gen")) {
			return line
		}
		return nil
	})
}

// protobufPackages returns the packages that have a .proto file.
func protobufPackages(t *testing.T, module string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(module, "*", "*", protobuf.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, file := range files {
		p, err := filepath.Rel(module, filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, filepath.ToSlash(p))
	}
	return packages
}

// sameProto compares the .proto file with that of go-to-protobuf, except for their headers.
func sameProto(t *testing.T, original, generated string) {
	t.Helper()
	messages := func(dir string) []byte {
		text := string(withoutRules(read(t, filepath.Join(dir, protobuf.FileName))))
		_, body, found := strings.Cut(text, "option go_package = ")
		if !found {
			t.Fatalf("%s: no go_package", dir)
		}
		_, body, _ = strings.Cut(body, "\n")
		body = regexp.MustCompile(`(// items, if empty, .*\n)\n`).ReplaceAllString(body, "$1") // an extra blank line
		body = regexp.MustCompile(`(?m)^//\n(message )`).ReplaceAllString(body, "$1")          // above a removed tag
		return []byte(strings.TrimSpace(body) + "\n")
	}
	if d := diff.Diff("go-to-protobuf", messages(original), "annex", messages(generated)); d != nil {
		t.Errorf("%s: %s", generated, d)
	}
}

// pairs writes the list of all types with generated protobuf code.
func pairs(t *testing.T, original string, packages []string) []byte {
	t.Helper()
	var imports, list strings.Builder
	for i, p := range packages {
		fmt.Fprintf(&imports, "theirs%d \"k8s.io/api/%s\"\nours%d \"example.com/copy/%s\"\n", i, p, i, p)
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(original, p, "generated.pb.go"), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "Unmarshal" {
				name := receiver(fn)
				fmt.Fprintf(&list, "{%q, func() message { return new(theirs%d.%s) }, func(m message) message { return "+
					"(*ours%d.%s)(unsafe.Pointer(m.(*theirs%d.%s))) }},\n",
					p+"."+name, i, name, i, name, i, name)
			}
		}
	}
	return []byte("package proof\n\nimport (\n\"unsafe\"\n" + imports.String() + ")\n\nvar pairs = []pair{\n" + list.String() + "}\n")
}

func runIn(t *testing.T, dir string) {
	t.Helper()
	if _, err := Run(t.Context(), Options{Dir: dir, Worker: testWorker(), Module: testModule(t)}); err != nil {
		t.Fatal(err)
	}
}

func moduleDir(t *testing.T, path string) string {
	t.Helper()
	return strings.TrimSpace(goIn(t, ".", "list", "-m", "-f", "{{.Dir}}", path))
}

func goIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
