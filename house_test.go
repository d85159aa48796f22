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

// rooms says which rooms of the house each room may import directly. Imports
// follow a request from the façade to the disk; the reason stands where it is not
// plain.
var rooms = map[string][]string{
	"":                                     {"api", "config", "internal/admit", "internal/apierr", "internal/budget", "internal/cli", "internal/define", "internal/informer", "internal/ordered", "internal/plan", "internal/serve", "store/driver"},
	"controlplane":                         {"", "internal/admit", "internal/aggregate", "internal/builtin", "internal/crds", "internal/define", "internal/garbage", "internal/loopback", "internal/migration", "internal/policies", "internal/publish", "internal/quota", "internal/serve"}, // what only some servers link
	"operation":                            {"", "api", "internal/define", "internal/operations", "operation/v1"},                                                                                                                                                                            // what only some servers link
	"operation/v1":                         {"api"},                                                                                                                                                                                                                                          // clients link it
	"stream":                               {"", "internal/apierr", "internal/outcome", "internal/streams"},                                                                                                                                                                                  // what only some servers link
	"annextest":                            {"", "internal/convert", "internal/define", "internal/testlog", "store/memory"},
	"config":                               {"store/driver"},
	"internal/streams":                     {},
	"internal/streams/streamtest":          {}, // for tests
	"internal/logfile":                     {"config"},
	"internal/audit":                       {"config", "internal/logfile"},
	"internal/accounts":                    {"api", "internal/define", "internal/jws"},
	"internal/jws":                         {},
	"internal/login":                       {"internal/jws", "store"},
	"internal/plan":                        {"config", "internal/accounts", "internal/audit", "internal/cluster", "internal/console", "internal/controllers", "internal/coreapi", "internal/define", "internal/fairness", "internal/leading", "internal/login", "internal/registry", "internal/requirements", "internal/rights", "store/driver", "store/embedded"},
	"internal/cli":                         {"config", "internal/accounts", "internal/budget", "internal/certs", "internal/cluster", "internal/controllers", "internal/define", "internal/login", "internal/maintenance", "internal/manifests", "internal/plan", "internal/requirements", "internal/serve", "internal/systemd", "internal/typo", "internal/upstream", "store/driver", "store/embedded", "store/etcd", "store/files", "store/journal", "store/memory"},
	"store/driver":                         {"store/journal"},
	"api":                                  {}, // clients link it
	"docs":                                 {}, // tests of the pages
	"internal/apitest":                     {}, // the tests of the server as a whole
	"internal/apitest/controlplane":        {}, // the same, of a control plane
	"internal/apitest/queries":             {}, // the same, of queries
	"internal/define":                      {"api", "internal/structural", "internal/typo", "store/driver"},
	"internal/structural":                  {"internal/yamlsize"},
	"internal/yamlsize":                    {},
	"internal/budget":                      {},
	"internal/controllers":                 {"internal/define"},
	"internal/operations":                  {"internal/define", "operation/v1"},
	"internal/requirements":                {"config"},
	"internal/manifests":                   {"config", "internal/define", "internal/plan", "internal/requirements", "store/driver"},
	"internal/convert":                     {"internal/define", "internal/plainjson", "internal/structural", "internal/verbatim"},
	"internal/admit":                       {"internal/define"},
	"internal/encryption":                  {"store"},
	"internal/encryption/kmstest":          {}, // for tests
	"internal/informer":                    {"internal/define"},
	"internal/query":                       {},
	"internal/registry":                    {"internal/admit", "internal/convert", "internal/define", "internal/managed", "internal/push", "internal/verbatim", "store"},
	"internal/upstream":                    {"config", "internal/budget", "internal/clientcert", "internal/configfile", "internal/convert", "internal/define", "internal/direct", "internal/managed", "internal/push", "internal/query", "internal/reads", "internal/registry", "internal/stacks", "internal/standing", "internal/structural", "internal/writes", "internal/yamlsize"},
	"internal/cluster":                     {"config", "internal/admit", "internal/clientcert", "internal/requirements"},
	"internal/auth":                        {"config", "internal/clientcert", "internal/configfile"},
	"internal/auth/authtest":               {}, // for tests
	"internal/builtin":                     {"api", "internal/define", "internal/facts/admissionregistration", "internal/facts/apiregistration", "internal/facts/coordinationv1beta1", "internal/facts/core", "internal/facts/storagemigration", "internal/leading", "internal/podspec"},
	"internal/leading":                     {"internal/define", "internal/facts/coordination", "internal/facts/core", "internal/facts/events"},
	"internal/podspec":                     {},
	"internal/configfile":                  {},
	"internal/clientcert":                  {"config"},
	"internal/cluster/clustertest":         {}, // for tests
	"internal/certs":                       {"internal/jws"},
	"internal/rbac":                        {},
	"internal/fairness":                    {"internal/define", "internal/facts/flowcontrol"},
	"internal/rights":                      {"internal/define", "internal/facts/rbac", "internal/informer", "internal/rbac", "internal/registry"},
	"internal/reviews":                     {"api", "internal/facts/authentication", "internal/facts/authorization"},
	"internal/facts/authentication":        {"api"}, // generated
	"internal/facts/authorization":         {"api"}, // generated
	"internal/facts/flowcontrol":           {"api"}, // generated
	"internal/facts/rbac":                  {"api"}, // generated
	"internal/facts/storagemigration":      {"api"}, // generated
	"internal/facts/events":                {"api"}, // generated
	"internal/facts/core":                  {"api"}, // generated
	"internal/facts/coordination":          {"api"}, // generated
	"internal/facts/coordinationv1beta1":   {"api"}, // generated
	"internal/facts/admissionregistration": {"api"}, // generated
	"internal/facts/apiregistration":       {"api"}, // generated
	"internal/servingcert":                 {"internal/certs"},
	"internal/clidoc":                      {},                   // for tests
	"internal/typo":                        {},                   // which name was meant, for messages
	"internal/crashfs":                     {},                   // for tests
	"internal/testlog":                     {},                   // for tests
	"internal/testwait":                    {},                   // for tests
	"internal/stalled":                     {},                   // for tests
	"internal/transcript":                  {"internal/testlog"}, // for tests
	"internal/policies":                    {"internal/admit"},
	"internal/publish":                     {},
	"internal/quota":                       {"internal/admit", "internal/resources"},
	"internal/aggregate":                   {},
	"internal/migration":                   {"internal/resources"},
	"internal/direct":                      {},
	"internal/reads":                       {"internal/convert", "internal/define", "internal/direct", "internal/plainjson", "internal/plainyaml", "internal/push", "internal/registry", "internal/stacks", "internal/standing", "internal/verbatim"},
	"internal/push":                        {"internal/verbatim"},
	"internal/managed":                     {},
	"internal/writes":                      {"internal/direct", "internal/managed", "internal/plainjson", "internal/stacks", "internal/verbatim"},
	"internal/stacks":                      {},
	"internal/standing":                    {},
	"internal/verbatim":                    {},
	"internal/plainjson":                   {},
	"internal/plainyaml":                   {},
	"internal/crds":                        {"internal/query", "internal/reads", "internal/upstream"}, // a server behind the server
	"internal/loopback":                    {},
	"internal/coreapi":                     {},
	"internal/resources":                   {},
	"internal/garbage":                     {"internal/resources"},
	"internal/systemd":                     {},
	"internal/console":                     {},
	"internal/mvcc":                        {"internal/budget", "internal/push", "internal/verbatim", "store", "store/journal"},
	"internal/maintenance":                 {"internal/convert", "internal/encryption", "internal/mvcc", "store", "store/journal"},
	"internal/virtual":                     {"internal/define", "internal/mvcc", "store", "store/memory"},
	"internal/shop/v1":                     {"api"}, // the tests' own API
	"internal/shop/v1beta1":                {"api", "internal/shop/v1"},
	"internal/shop/marked/v1":              {"api"},
	"internal/shop/marked/v1beta1":         {"api", "internal/shop/marked/v1"},
	"internal/shop/legacy/v1":              {"api", "internal/shop/v1"},
	"internal/shop/rules/v1":               {"api"}, // rules that are tags
	"internal/shop/rules/v1beta1":          {"api", "internal/shop/rules/v1"},
	"store":                                {"store/driver"},
	"store/journal":                        {},
	"store/memory":                         {"store/driver", "store/journal"}, // journals do not know each other
	"store/embedded":                       {"store/driver", "store/journal"},
	"store/files":                          {"internal/yamlsize", "store/driver", "store/embedded", "store/journal"}, // its truth is an embedded journal, which the files follow
	"store/etcd":                           {"internal/apierr", "internal/budget", "store", "store/driver"},
	"store/storetest":                      {"internal/mvcc", "internal/testwait", "store", "store/journal"},
	"internal/serve":                       {"config", "internal/accounts", "internal/admit", "internal/audit", "internal/auth", "internal/budget", "internal/certs", "internal/clientcert", "internal/cluster", "internal/console", "internal/controllers", "internal/convert", "internal/coreapi", "internal/datadir", "internal/define", "internal/encryption", "internal/fairness", "internal/informer", "internal/login", "internal/loopback", "internal/maintenance", "internal/mvcc", "internal/plan", "internal/query", "internal/registry", "internal/requirements", "internal/resources", "internal/reviews", "internal/rights", "internal/servingcert", "internal/standing", "internal/upstream", "internal/virtual", "store", "store/driver", "store/embedded", "store/files", "store/journal"},
	"internal/datadir":                     {},
}

// leaves import no other room, and every room of internal may import them.
var leaves = []string{"internal/apierr", "internal/atomicfile", "internal/await", "internal/credential", "internal/filelock", "internal/filewatch", "internal/objects", "internal/ordered", "internal/outcome", "internal/pagecookie", "internal/secretfile"}

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

// yamlPackage reads YAML as kubectl does. It is of Kubernetes' house, but knows
// nothing of it and links nothing else there.
const yamlPackage = "sigs.k8s.io/yaml"

// engine are the rooms that must not link Kubernetes at all.
var engine = []string{"internal/budget", "internal/yamlsize", "store/journal", "store/memory", "store/embedded", "store/files"}

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

func room(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func TestImportsPointOneWay(t *testing.T) {
	packages := map[string]goPackage{}
	for _, p := range goList(t, "./...") {
		name, _ := room(p.ImportPath)
		packages[name] = p
		allowed, known := rooms[name]
		switch {
		case slices.Contains(leaves, name):
			known = true
		case strings.HasPrefix(name, "internal/"):
			allowed = slices.Concat(allowed, leaves)
		}
		if !known {
			t.Errorf("%s is a room that the house does not know: give it a place in rooms and in ARCHITECTURE.md", name)
		}
		for _, path := range p.Imports {
			if imported, ours := room(path); ours && !slices.Contains(allowed, imported) {
				t.Errorf("%q imports %q: not a way that imports may point", name, imported)
			}
			if path == "k8s.io/apiserver/pkg/server" && name != "internal/upstream" && name != "internal/crds" {
				t.Errorf("%q imports %s: only internal/upstream climbs that ladder, and internal/crds, whose server is behind it", name, path)
			}
		}
		for _, dep := range p.Deps {
			for prefix, reason := range forbidden {
				if dep == prefix || strings.HasPrefix(dep, prefix+"/") {
					t.Errorf("%q links %s: %s", name, dep, reason)
				}
			}
			if slices.Contains(engine, name) && strings.Contains(strings.SplitN(dep, "/", 2)[0], "k8s.io") && dep != yamlPackage {
				t.Errorf("%q links %s: the engine imports no Kubernetes", name, dep)
			}
		}
	}
	for name, allowed := range rooms {
		p, there := packages[name]
		if !there {
			t.Errorf("%q is no room of the house any more: take it out of rooms", name)
		}
		for _, other := range allowed {
			if path := strings.TrimSuffix(module+"/"+other, "/"); !slices.Contains(p.Imports, path) {
				t.Errorf("%q does not import %q: take the way out of rooms", name, other)
			}
		}
	}
}

// goFiles calls see with each file of Go code that is no test. It leaves out directories
// that skip, which may be nil, is true for; they have slashes.
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

// literals calls see with every string literal of the module's code, but for that of tests
// and of the rooms, and says where it is.
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

// A comment names who acts (the client, another writer, the operator, an anonymous request):
// a reader can search for that, and knows who is meant.
func TestCommentsNameWhoActs(t *testing.T) {
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

// commandLines are the files below the command line that may hold flags, with the reason.
var commandLines = map[string]string{
	"internal/manifests/arguments.go": "what programs in pods are started with",
}

// A program that embeds a server has no flags: messages name fields, and internal/cli puts
// flags in their place.
func TestOnlyTheCommandLineNamesFlags(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	literals(t, []string{"internal/cli"}, func(file, at, text string) {
		if !flag.MatchString(text) {
			return
		}
		found[file] = true
		if commandLines[file] == "" {
			t.Errorf("%s: %q names a flag: name the field, and give it a flag in flagOf of internal/cli", at, text)
		}
	})
	for file := range commandLines {
		if !found[file] {
			t.Errorf("%s names no flag any more: take it out of commandLines", file)
		}
	}
}

// otherNames are literals that are called as a storage is, with what they name.
var otherNames = map[string]string{
	"internal/manifests/etcd.go: etcd": "the program",
	"internal/budget/limit.go: memory": "a controller of cgroups",
}

// What is to be known of a storage, its driver's traits and methods say.
func TestOnlyDriversAndTheCommandLineNameStorages(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	literals(t, []string{"internal/cli", "store/embedded", "store/files", "store/memory", "store/etcd"}, func(file, at, text string) {
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

// maxModules bounds the root's module graph. What is over it must be worth it.
const maxModules = 275

func TestTheModuleGraphStaysLean(t *testing.T) {
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

// The workspace hides requirements that a module's own files lack, and users have no
// workspace: what they copy of a sample would not build.
func TestModulesBuildOutsideTheWorkspace(t *testing.T) {
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

// A go.work.sum that lacks lines is completed by the next go command, whichever it is, and
// a clean clone is not clean any more.
func TestTheWorkspaceHasAllSums(t *testing.T) {
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

// maxBinary bounds the stripped sample, in bytes. Upstream's admission plugins, for
// servers in a cluster, are 8 MiB of it: their types name the clients of all groups. The tokens
// of identity providers are 0.6 MiB, sending spans 0.4, and the pages for people 0.7.
const maxBinary = 88 << 20

func TestTheSampleStaysSmall(t *testing.T) {
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
	t.Logf("stripped sample: %.1f MiB, at most %d MiB", float64(info.Size())/(1<<20), maxBinary>>20)
	if info.Size() > maxBinary {
		t.Errorf("the stripped sample has %d bytes, more than %d", info.Size(), maxBinary)
	}
}
