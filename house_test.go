package annex_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/annexapi/annex"

// districts are the folders of internal, from the top to the bottom. A package may import
// packages of its own district and of lower districts, never of a higher one: a request enters at the top
// and ends at the disk. Public lists the public packages that a district may import.
var districts = []struct {
	name   string
	public []string
}{
	{"program", []string{"config", "store", "store/driver", "store/journal", "store/memory", "store/embedded", "store/files", "store/etcd"}},
	{"controlplane", []string{"api"}},
	{"aggregated", []string{"config"}},
	{"standalone", []string{"store"}}, // a create depends on its namespace
	{"server", []string{"config", "operation/v1"}},
	{"fastpath", nil},
	{"identity", []string{"api", "config", "store"}},
	{"storage", []string{"store", "store/journal", "store/memory"}},
	{"model", []string{"api", "store/driver"}},
	{"wire", nil},
	{"base", nil},
}

// public lists what each public package imports of ours.
var public = map[string][]string{
	"": {
		"api",
		"config",
		"internal/base/apierr",
		"internal/base/ordered",
		"internal/model/admit",
		"internal/model/define",
		"internal/model/informer",
		"internal/program/definition",
		"internal/program/plan",
		"internal/program/serve",
		"store/driver",
	},
	"annextest": {"", "internal/base/dialed", "internal/model/convert", "internal/model/define", "internal/testing/testlog", "store/memory"},
	"api":       {}, // clients link it
	"config":    {"store/driver"},
	"controlplane": {
		"",
		"internal/controlplane/aggregate",
		"internal/controlplane/builtin",
		"internal/controlplane/crds",
		"internal/controlplane/garbage",
		"internal/controlplane/migration",
		"internal/controlplane/policies",
		"internal/controlplane/publish",
		"internal/controlplane/quota",
		"internal/model/admit",
		"internal/model/define",
		"internal/program/definition",
		"internal/server/loopback",
	},
	"docs":           {}, // tests of the pages
	"program":        {"", "internal/base/budget", "internal/program/cli", "internal/program/definition"},
	"operation":      {"", "api", "internal/model/define", "internal/server/operations", "operation/v1"},
	"operation/v1":   {"api"}, // clients link it
	"store":          {"store/driver"},
	"store/driver":   {"store/journal"},
	"store/embedded": {"store/driver", "store/journal"}, // journals do not import each other
	"store/etcd":     {"internal/base/apierr", "internal/base/budget", "store", "store/driver"},
	"store/files": {
		"internal/base/yamlsize",
		"store/driver",
		"store/embedded",
		"store/journal",
	}, // the embedded journal holds its objects, and the files follow
	"store/journal":   {},
	"store/memory":    {"internal/base/atomicfile", "store/driver", "store/journal"},
	"store/storetest": {"internal/storage/mvcc", "internal/testing/testwait", "store", "store/journal"},
	"stream":          {"", "internal/base/apierr", "internal/base/outcome", "internal/server/streams"},
}

// linked are packages that only some servers link, by the public package whose import links them.
var linked = map[string]string{
	"internal/controlplane":      "controlplane",
	"internal/server/operations": "operation",
	"internal/server/streams":    "stream",
}

// forTests are packages that only tests import: packages of districts, and public packages for tests. The packages
// of district testing are also for tests, without being listed.
var forTests = []string{
	"internal/aggregated/cluster/clustertest",
	"internal/identity/auth/authtest",
	"internal/server/streams/streamtest",
	"internal/storage/encryption/kmstest",
}

// forbidden are packages that must not be linked, with the reason.
var forbidden = map[string]string{
	"k8s.io/kubernetes":              "it is no library: its packages change without notice and bring the whole of Kubernetes",
	"k8s.io/code-generator":          "generators belong to the tool, cmd/annex",
	"k8s.io/gengo":                   "generators belong to the tool, cmd/annex",
	"sigs.k8s.io/controller-runtime": "users choose their controllers' library; we serve any",
	"github.com/gin-gonic":           "the core has no web framework",
	"github.com/labstack/echo":       "the core has no web framework; an adapter may be a module of its own",
	"go.etcd.io/etcd/server":         "standing alone needs no etcd",
}

// yamlPackage reads YAML as kubectl does. It belongs to Kubernetes, but depends on no other package of Kubernetes.
const yamlPackage = "sigs.k8s.io/yaml"

// engine are the packages that must not link Kubernetes at all.
var engine = []string{"internal/base/budget", "internal/base/yamlsize", "store/journal", "store/memory", "store/embedded", "store/files"}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

func goList(t *testing.T, args ...string) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps,Standard"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// ours returns the path of a package within the module.
func ours(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

// within reports whether a package has the path or is below it.
func within(name, path string) bool { return name == path || strings.HasPrefix(name, path+"/") }

// district returns the rank of an internal package's district, 0 at the top, and the district's name.
func district(name string) (floor int, in string) {
	in, _, _ = strings.Cut(strings.TrimPrefix(name, "internal/"), "/")
	for floor := range districts {
		if districts[floor].name == in {
			return floor, in
		}
	}
	return -1, in
}

// mayImport returns the reason why a package may not import another; empty if it may.
func mayImport(name, imported string) string {
	if allowed, is := public[name]; is {
		if !slices.Contains(allowed, imported) {
			return "public lists all that it imports"
		}
		return ""
	}
	floor, in := district(name)
	if in == "testing" {
		return ""
	}
	if !strings.HasPrefix(imported, "internal/") {
		if !slices.Contains(districts[floor].public, imported) {
			return "districts lists the public packages that this district imports"
		}
		return ""
	}
	if imported == "internal/testing/testlog" && slices.Contains(forTests, name) {
		return ""
	}
	if other, is := district(imported); is == "testing" || slices.Contains(forTests, imported) {
		return "only tests import it"
	} else if other < floor {
		return "imports point down"
	}
	for path, by := range linked {
		if within(imported, path) && !within(name, path) {
			return "only servers whose programs import " + by + " link it"
		}
	}
	return ""
}

func TestImports_pointDown(t *testing.T) {
	used := map[string]bool{}
	for _, p := range goList(t, "./...") {
		name, _ := ours(p.ImportPath)
		_, isPublic := public[name]
		if floor, in := district(name); !isPublic && (!strings.HasPrefix(name, "internal/") || floor < 0 && in != "testing") {
			t.Errorf("%s is in no district and no public package: give it a place in districts or public, and in ARCHITECTURE.md", name)
			continue
		}
		used[name] = true
		for _, path := range p.Imports {
			if imported, is := ours(path); is {
				if why := mayImport(name, imported); why != "" {
					t.Errorf("%q imports %q: %s", name, imported, why)
				}
				_, in := district(name)
				if used[name+" > "+imported] = true; !isPublic && !strings.HasPrefix(imported, "internal/") {
					used[in+" > "+imported] = true
				}
			}
			if path == "k8s.io/apiserver/pkg/server" && name != "internal/server/upstream" && name != "internal/controlplane/crds" {
				t.Errorf(
					"%q imports %s: only internal/server/upstream climbs that ladder, and internal/controlplane/crds, whose server is behind it",
					name,
					path,
				)
			}
		}
		for _, dep := range p.Deps {
			for prefix, reason := range forbidden {
				if within(dep, prefix) {
					t.Errorf("%q links %s: %s", name, dep, reason)
				}
			}
			if slices.Contains(engine, name) && strings.Contains(strings.SplitN(dep, "/", 2)[0], "k8s.io") && dep != yamlPackage {
				t.Errorf("%q links %s: the engine imports no Kubernetes", name, dep)
			}
			for path, by := range linked {
				if linked, is := ours(dep); name == "" && is && within(linked, path) {
					t.Errorf("the root package links %s: only servers whose programs import %s do", linked, by)
				}
			}
		}
	}
	for name, allowed := range public {
		if !used[name] {
			t.Errorf("%q is no package any more: take it out of public", name)
		}
		for _, imported := range allowed {
			if !used[name+" > "+imported] {
				t.Errorf("%q does not import %q: take it out of public", name, imported)
			}
		}
	}
	for _, d := range districts {
		for _, imported := range d.public {
			if !used[d.name+" > "+imported] {
				t.Errorf("district %s does not import %q: take it out of districts", d.name, imported)
			}
		}
	}
}

// unlinked are packages that the root package, and with it annextest, must not link, with the reason.
var unlinked = map[string]string{
	"github.com/cockroachdb/pebble":   "the storages embedded and files are imported by those who use them",
	module + "/store/embedded":        "an embedder imports the storage that it uses",
	module + "/store/files":           "an embedder imports the storage that it uses",
	module + "/store/etcd":            "an embedder imports the storage that it uses",
	module + "/program":               "an embedder has a command line of its own",
	module + "/internal/program/cli":  "an embedder has a command line of its own",
	module + "/internal/controlplane": "only servers whose programs import controlplane link it",
}

// k8s.io/apiserver itself links cobra (in component-base/cli/flag) and the client of etcd (in its generic registry).
// None of our packages that the root links may import them as well.
func TestImports_rootLinksNoStorageAndNoCommandLine(t *testing.T) {
	for _, p := range goList(t, "-deps", ".", "./annextest") {
		for prefix, why := range unlinked {
			if within(p.ImportPath, prefix) {
				t.Errorf("the root or annextest links %s: %s", p.ImportPath, why)
			}
		}
		if _, is := ours(p.ImportPath); !is {
			continue
		}
		for _, path := range p.Imports {
			if within(path, "github.com/spf13") || within(path, "go.etcd.io") {
				t.Errorf("%s imports %s, and the root or annextest links it", p.ImportPath, path)
			}
		}
	}
}

// The doc.go of a district describes its content, its limits, and where a request enters and leaves it.
func TestDistricts_haveASign(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("internal")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 12 {
		t.Errorf("internal has %d districts: a reader keeps a dozen in mind", len(entries))
	}
	for _, entry := range entries {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("internal", entry.Name(), "doc.go"), nil, parser.ParseComments)
		if err != nil {
			t.Errorf("the district has no sign: %v", err)
			continue
		}
		for _, part := range []string{"It holds", "It must not", "A request"} {
			if !strings.Contains(file.Doc.Text(), part) {
				t.Errorf("internal/%s/doc.go has no sentence that begins with %q", entry.Name(), part)
			}
		}
	}
}

// goFiles calls see with each Go file that is no test. It leaves out directories for which skip returns true; their
// paths have slashes. skip may be nil.
func goFiles(t *testing.T, skip func(dir string) bool, see func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(path)
		if entry.IsDir() {
			hidden := strings.HasPrefix(entry.Name(), ".") && name != "."
			if hidden || entry.Name() == "testdata" || skip != nil && skip(name) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil {
			see(name, files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// literals calls see with each string literal of the module's code and its position, except in tests and in the
// given directories.
func literals(t *testing.T, but []string, see func(file, at, text string)) {
	t.Helper()
	skip := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		return dir != "." && err == nil || slices.Contains(but, dir)
	}
	goFiles(t, skip, func(name string, files *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Error(err)
				}
				see(name, files.Position(literal.Pos()).String(), text)
			}
			return true
		})
	})
}

var unnamed = regexp.MustCompile(`(?i)\b(somebody|whoever|nobody|everybody)\b`)

// A comment names the actor (the client, another writer, the operator, an anonymous request), so that readers can
// search for the word and know the actor.
func TestComments_nameActors(t *testing.T) {
	goFiles(t, nil, func(_ string, files *token.FileSet, file *ast.File) {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				if word := unnamed.FindString(comment.Text); word != "" {
					t.Errorf("%s: %q: say who", files.Position(comment.Pos()), word)
				}
			}
		}
	})
}

var flag = regexp.MustCompile(`(^|[^-\w])--[a-z]`)

// commandLines are files outside of the command line that may contain flags, with the reason.
var commandLines = map[string]string{
	"internal/program/manifests/arguments.go": "what programs in pods are started with",
	"internal/program/manifests/external.go":  "the command line of a server outside of the cluster",
}

// A program that embeds a server has no flags, so messages name fields; internal/program/cli replaces them by
// flags.
func TestMessages_nameNoFlags(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	literals(t, []string{"internal/program/cli"}, func(file, at, text string) {
		if !flag.MatchString(text) {
			return
		}
		found[file] = true
		if commandLines[file] == "" {
			t.Errorf("%s: %q names a flag: name the field, and give it a flag in flagOf of internal/program/cli", at, text)
		}
	})
	for file := range commandLines {
		if !found[file] {
			t.Errorf("%s names no flag any more: take it out of commandLines", file)
		}
	}
}

// otherNames are literals that equal a storage's name but mean something else, with that meaning.
var otherNames = map[string]string{
	"internal/program/datadir/unrecorded.go: embedded": "what a data directory without a record holds",
	"internal/program/datadir/unrecorded.go: files":    "what a data directory without a record holds",
	"internal/program/manifests/etcd.go: etcd":         "the program",
	"internal/base/budget/limit.go: memory":            "a controller of cgroups",
}

// Code learns the properties of a storage from its driver's traits and methods, not from its name.
func TestStorageNames_onlyInDrivers(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	literals(t, []string{"internal/program/cli", "store/embedded", "store/files", "store/memory", "store/etcd"}, func(file, at, text string) {
		if !slices.Contains([]string{"embedded", "files", "memory", "etcd"}, text) {
			return
		}
		found[file+": "+text] = true
		if otherNames[file+": "+text] == "" {
			t.Errorf("%s: %q is a storage's name: ask its driver", at, text)
		}
	})
	for name := range otherNames {
		if !found[name] {
			t.Errorf("%s is not there any more: take it out of otherNames", name)
		}
	}
}

// maxModules bounds the root's module graph. A larger graph needs a reason.
const maxModules = 275

func TestModuleGraph_size(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "all")
	cmd.Env = append(cmd.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -m all: %v", err)
	}
	n := strings.Count(string(out), "\n")
	t.Logf("modules in the root's graph: %d, at most %d", n, maxModules)
	if n > maxModules {
		t.Errorf("%d modules in the root's graph, more than %d", n, maxModules)
	}
}

// The workspace hides requirements that a module's own go.mod lacks. Users have no workspace, so their copies of a
// sample would not build.
func TestModules_buildWithoutWorkspace(t *testing.T) {
	if testing.Short() {
		t.Skip("lists the packages of all modules")
	}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == ".git"):
			return fs.SkipDir
		case entry.Name() != "go.mod":
			return nil
		}
		cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=readonly", "-deps", "-test", "./...")
		cmd.Dir = filepath.Dir(path)
		cmd.Env = append(cmd.Environ(), "GOWORK=off")
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v; go -C %s mod tidy\n%s", path, err, cmd.Dir, said.String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The next go command, whichever it is, completes a go.work.sum that lacks lines, and a clean clone becomes dirty.
func TestWorkspace_hasAllSums(t *testing.T) {
	t.Parallel()
	checkout, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.ReadFile("go.work")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("go.work.sum")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	work = regexp.MustCompile(`(?m)^\t\./?(.*)$`).ReplaceAll(work, []byte("\t"+checkout+"/$1"))
	for name, text := range map[string][]byte{"go.work": work, "go.work.sum": sums} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "all")
	cmd.Env = append(cmd.Environ(), "GOWORK="+filepath.Join(dir, "go.work"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	now, err := os.ReadFile(filepath.Join(dir, "go.work.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if added := strings.Count(string(now), "\n") - strings.Count(string(sums), "\n"); added != 0 {
		t.Errorf("go list -m all adds %d lines to go.work.sum: commit them", added)
	}
}

// maxBinary bounds the stripped sample, in bytes. Upstream's admission plugins for aggregated servers are 8 MiB of
// it: their types refer to the clients of all groups. OpenID Connect tokens are 0.6 MiB, tracing is 0.4, and the
// web pages are 0.7. The constructors of serve's parts, the instances of mvcc's indexes, and the tree of memory's journal
// are the last 0.3. Linkers align: a few lines for RoleBindings, rows and authorities took it over 352 KiB by 24. The history
// of objects, its documents, and the digests of tables are 0.6.
const maxBinary = 89<<20 + 512<<10

func TestSample_binarySize(t *testing.T) {
	if testing.Short() {
		t.Skip("links a program")
	}
	binary := filepath.Join(t.TempDir(), "wardle")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, ".")
	cmd.Dir = "samples/wardle"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the sample: %v\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stripped sample: %.2f MiB, at most %.2f MiB", float64(info.Size())/(1<<20), float64(maxBinary)/(1<<20))
	if info.Size() > maxBinary {
		t.Errorf("the stripped sample has %d bytes, more than %d", info.Size(), maxBinary)
	}
}
