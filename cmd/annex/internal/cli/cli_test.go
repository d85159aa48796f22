package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// generate runs its own executable again, which in tests is the test binary.
	if len(os.Args) > 1 && os.Args[1] == workerVerb {
		os.Exit(Main(Module{}, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(m, map[string]func(){
		"annex": func() { os.Exit(Main(ownModule(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// ownModule returns the module that the tool embeds. The scripts run in folders of their own, so the environment has
// its path.
func ownModule() Module {
	var m Module
	m.Mod, _ = os.ReadFile(filepath.Join(os.Getenv("ANNEX_MODULE"), "go.mod"))
	m.Sum, _ = os.ReadFile(filepath.Join(os.Getenv("ANNEX_MODULE"), "go.sum"))
	return m
}

// The scripts test the command line as a user types it.
func TestScripts(t *testing.T) {
	caches := goEnv(t, "GOMODCACHE", "GOCACHE", "GOROOT")
	own, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	userCache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cluster, joined := ward(t), aggregator(t)
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			annex, err := exec.LookPath("annex")
			if err != nil {
				return err
			}
			for name, server := range map[string]string{"ward": cluster.URL, "aggregator": joined.URL, "unreachable": "https://127.0.0.1:1"} {
				if err := writeKubeconfig(env.WorkDir, name, server); err != nil {
					return err
				}
			}
			// With the flags of the test the go command finds what was compiled for it.
			flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -mod=readonly")
			env.Vars = append(env.Vars,
				"GOMODCACHE="+caches[0], "GOCACHE="+caches[1], "GOROOT="+caches[2],
				"ANNEX="+annex, "ANNEX_MODULE="+own, "XDG_CACHE_HOME="+userCache,
				"GOPROXY=off", "GOSUMDB=off", "GOFLAGS="+flags, "GOWORK=off", "GOTOOLCHAIN=local")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"gomod": gomod,
			"exits": exits,
		},
	})
}

func goEnv(t *testing.T, names ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// gomod makes the current folder a module of that name, with the dependencies of this module, so that nothing has to
// be downloaded.
func gomod(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: gomod MODULE")
	}
	const own = "../.."
	root, err := filepath.Abs("../../../..")
	ts.Check(err)
	mod, err := os.ReadFile(filepath.Join(own, "go.mod"))
	ts.Check(err)
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module "+args[0]))
	mod = bytes.ReplaceAll(mod, []byte("=> ../.."), []byte("=> "+root))
	ts.Check(os.WriteFile(ts.MkAbs("go.mod"), mod, 0o644))
	sum, err := os.ReadFile(filepath.Join(own, "go.sum"))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("go.sum"), sum, 0o644))
}

// exits runs a command, which must end with the given exit code. Its output can be matched as after exec.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	code := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}
