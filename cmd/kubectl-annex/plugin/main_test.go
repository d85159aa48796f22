package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/annexapi/annex/internal/testing/clidoc"
	"github.com/annexapi/annex/internal/testing/testlog"
)

func TestMain(m *testing.M) {
	testscript.Main(testlog.Quiet(m), map[string]func(){
		"kubectl-annex":          func() { Main(Options{}) },
		"kubectl_complete-annex": func() { Main(Options{}) },
		"kubectl-shop":           func() { Main(Options{Name: "shop", Groups: []string{"*.example.com"}}) },
		"kubectl-other":          func() { Main(Options{Name: "other", Groups: []string{"other.example.com"}}) },
	})
}

// The scripts test the command line as a user types it, with a server that has a subresource of each form.
func TestScripts(t *testing.T) {
	_, dir := openShop(t)
	kubeconfig, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
			env.Setenv("HOME", env.WorkDir)
			return os.WriteFile(filepath.Join(env.WorkDir, "kubeconfig"), kubeconfig, 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
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

// The page lists the flags of the plugin.
func TestReference(t *testing.T) {
	t.Parallel()
	reference := clidoc.Reference{
		Pages: []string{"../../../docs/reference/kubectl-annex.md"},
		By:    "UPDATE=1 go -C cmd/kubectl-annex test -run Reference ./plugin",
	}
	reference.Check(t, newPlugin(Options{}, IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}).root())
}
