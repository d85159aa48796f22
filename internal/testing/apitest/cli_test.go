package apitest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/operation"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// TestMain lets the test binary be the program shop as well.
func TestMain(m *testing.M) {
	testscript.Main(testlog.Quiet(m), map[string]func(){
		"shop":     func() { program.Main(shop()) },
		"marked":   func() { program.Main(markedShop()) },
		"other":    func() { program.Main(other()) },
		"moved":    func() { program.Main(moved()) },
		"factory":  func() { program.Main(factory()) },
		"workshop": func() { program.Main(workshop()) },
		"repairs":  func() { program.Main(repairs(operation.Options{})) },
		"zoo":      func() { program.Main(zoo()) },
		"chosen": func() {
			program.Main(
				only(
					widgets().StoredIn(memory.Storage()).StoredMediaType(jsonType),
					annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
				),
			)
		},
		"foldered": func() { program.Main(foldered()) },
		"partly": func() {
			program.Main(
				only(widgets(), annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().StoredIn(etcd.Cluster(etcd.Options{}))),
			)
		},
		"broken": func() { program.Main(annex.Server{Name: "broken", Groups: []annex.Group{{Name: "Bad"}}}) },
	})
}

func TestCommandLine(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs hundreds of times")
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE") != "",
		Deadline:      time.Now().Add(5 * time.Minute), // a server that does start ends here; machines may be busy
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// occupy NAME listens on a free port and puts it into the environment.
			"occupy": func(ts *testscript.TestScript, _ bool, args []string) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				ts.Check(err)
				ts.Defer(func() { l.Close() })
				_, port, err := net.SplitHostPort(l.Addr().String())
				ts.Check(err)
				ts.Setenv(args[0], port)
			},
			// hold DIR keeps a storage open, as another server would.
			"hold": func(ts *testscript.TestScript, _ bool, args []string) {
				j, err := embedded.Open(ts.MkAbs(args[0]), embedded.Options{})
				ts.Check(err)
				ts.Defer(func() { ts.Check(j.Close()) })
			},
			// stored DIR creates a storage with a namespace and a shelf, differing DIR one with another shelf of the
			// same name.
			"stored": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(storeRecords(
					ts.MkAbs(args[0]),
					journal.Record{
						Revision: 2,
						Key:      "/namespaces/default",
						Value:    []byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"default","uid":"1"}}`),
					},
					journal.Record{
						Revision: 3,
						Key:      "/shop.example.com/shelves/s",
						Value:    []byte(`{"kind":"Shelf","apiVersion":"shop.example.com/v1","metadata":{"name":"s","uid":"2"}}`),
					},
					journal.Record{
						Revision: 4,
						Previous: 3,
						Key:      "/shop.example.com/shelves/s",
						Value:    []byte(`{"kind":"Shelf","apiVersion":"shop.example.com/v1","metadata":{"name":"s","uid":"2","labels":{"a":"b"}}}`),
					},
				))
			},
			"differing": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(storeRecords(
					ts.MkAbs(args[0]),
					journal.Record{
						Revision: 2,
						Key:      "/shop.example.com/shelves/s",
						Value:    []byte(`{"kind":"Shelf","apiVersion":"shop.example.com/v1","metadata":{"name":"s","uid":"3"}}`),
					},
				))
			},
			// cut FROM TO copies a file without its last byte, newer FROM TO a backup with the next version of the
			// format.
			"cut": func(ts *testscript.TestScript, _ bool, args []string) {
				data := ts.ReadFile(args[0])
				ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(data[:len(data)-1]), 0o600))
			},
			"newer": func(ts *testscript.TestScript, _ bool, args []string) {
				data := []byte(ts.ReadFile(args[0]))
				data[len("AnnexBkp")+3]++
				ts.Check(os.WriteFile(ts.MkAbs(args[1]), data, 0o600))
			},
			// damage DIR creates a storage with one record and flips a bit of it.
			"damage": func(ts *testscript.TestScript, _ bool, args []string) {
				dir := ts.MkAbs(args[0])
				const value = "the value that is going to be damaged"
				j, err := embedded.Open(dir, embedded.Options{})
				ts.Check(err)
				_, err = j.Replay(context.Background(), func(journal.Record) error { return nil })
				ts.Check(err)
				wait, err := j.Append(journal.Record{Revision: 2, Key: "/shop.example.com/widgets/default/w", Value: []byte(value)})
				ts.Check(err)
				ts.Check(wait())
				ts.Check(j.Close())
				files, err := filepath.Glob(filepath.Join(dir, "*"))
				ts.Check(err)
				damaged := false
				for _, file := range files {
					data, err := os.ReadFile(file)
					ts.Check(err)
					if at := bytes.Index(data, []byte(value)); at >= 0 {
						data[at] ^= 1
						ts.Check(os.WriteFile(file, data, 0o600))
						damaged = true
					}
				}
				if damaged {
					return
				}
				ts.Fatalf("the record is in no file of %s", dir)
			},
		},
	})
}

// storeRecords creates an embedded storage with records.
func storeRecords(dir string, records ...journal.Record) error {
	j, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		return err
	}
	if _, err := j.Replay(context.Background(), func(journal.Record) error { return nil }); err != nil {
		return err
	}
	for _, r := range records {
		wait, err := j.Append(r)
		if err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
	return j.Close()
}

// process is a program that serves.
type process struct {
	*exec.Cmd
	lines []string // of its output
	log   bytes.Buffer
}

// shopProgram runs shop serve and reads its first lines.
func shopProgram(t *testing.T, args ...string) *process {
	t.Helper()
	p := prepare(t, args...)
	p.launch(t)
	return p
}

// launch starts the program and reads its first lines.
func (p *process) launch(t *testing.T) {
	t.Helper()
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	for len(p.lines) == 0 || !strings.HasPrefix(p.lines[len(p.lines)-1], "try: ") {
		if !scanner.Scan() {
			t.Fatalf("the program ended: %v\n%s", p.Wait(), &p.log)
		}
		p.lines = append(p.lines, scanner.Text())
	}
}

// prepare returns shop serve, to be started.
func prepare(t *testing.T, args ...string) *process {
	t.Helper()
	return prepareProgram(t, "shop", args...)
}

// prepareProgram is prepare for another program of TestMain.
func prepareProgram(t *testing.T, name string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), link, append([]string{"serve", "--secure-port=0"}, args...)...)}
	p.Dir = t.TempDir()
	p.Stderr = &p.log
	return p
}

// stop asks the program to end, and returns its exit error.
func (p *process) stop() error {
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait()
}

// clientFrom returns the client of a kubeconfig.
func clientFrom(t *testing.T, kubeconfig string) *client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, config)
}

func TestServe_printsAddressesAndEndsOrderly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ dir, word string }{
		"a plain name":    {"data", "data"},
		"a name to quote": {"it's my data", `'it'\''s my data`},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			data := filepath.Join(parent, test.dir)
			p := shopProgram(t, "--data-dir", data)

			kubeconfig := filepath.Join(data, "kubeconfig")
			if want := "shop listens on https://127.0.0.1:"; !strings.HasPrefix(p.lines[0], want) {
				t.Errorf("line 1: %q, want %s...", p.lines[0], want)
			}
			if want := "kubeconfig: " + kubeconfig; p.lines[1] != want {
				t.Errorf("line 2: %q, want %q", p.lines[1], want)
			}
			if want := "console: " + strings.TrimPrefix(p.lines[0], "shop listens on ") + "/console/"; p.lines[2] != want {
				t.Errorf("line 3: %q, want %q", p.lines[2], want)
			}
			word := kubeconfig
			if test.word != test.dir {
				word = "'" + parent + "/" + strings.TrimPrefix(test.word, "'") + "/kubeconfig'"
			}
			if want := "sign in: shop console --open --kubeconfig " + word; p.lines[3] != want {
				t.Errorf("line 4: %q, want %q", p.lines[3], want)
			}
			if want := "kubectl --kubeconfig " + word + " api-resources"; !strings.HasSuffix(p.lines[4], want) {
				t.Errorf("line 5: %q, want ...%s", p.lines[4], want)
			}
			info, err := os.Stat(kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("kubeconfig has mode %v", info.Mode())
			}
			clientFrom(t, kubeconfig).get(widgetsPath).want(http.StatusOK)
			if err := p.stop(); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		})
	}
}

func TestServe_secondSignal_endsAtOnce(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data, "--shutdown-timeout=1h")
	c := clientFrom(t, filepath.Join(data, "kubeconfig"))
	c.raw(unfinished, widgetsPath) // is in progress until it ends
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "draining", func() bool { return c.get("/readyz").code != http.StatusOK })
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var err error
	within(t, "the program", func() { err = p.Wait() })
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
}

func TestServe_closedOutput_continues(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := prepare(t, "--data-dir", data, "-v=2")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	p.Stdout, p.Stderr = write, write
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	kubeconfig := filepath.Join(data, "kubeconfig")
	testwait.Until(t, "a kubeconfig", func() bool { _, err := os.Stat(kubeconfig); return err == nil })
	c := clientFrom(t, kubeconfig)
	testwait.Until(t, "ready", func() bool { return c.get("/readyz").code == http.StatusOK })
	c.create("w")
	if err := p.stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// The command lines of upstream's servers have no verb.
func TestServe_withoutVerb_starts(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("known-from-a-repository,gardener,1,\"system:masters\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	p := prepare(t, "--data-dir=data", "--storage=memory", "--token-auth-file", tokens, "--audit-log-path=-", "--audit-log-maxage=0",
		"--audit-log-maxbackup=0",
		"--feature-gates=APIPriorityAndFairness=false", "--v=2")
	p.Args = slices.Delete(p.Args, 1, 2) // serve
	p.launch(t)
	c := clientFrom(t, filepath.Join(p.Dir, "data", "kubeconfig"))
	c.stranger("known-from-a-repository").get(widgetsPath).want(http.StatusOK)
	if err := p.stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if log := p.log.String(); runtime.GOOS != "windows" && !strings.Contains(log, "(mode 0644): chmod it to 600") {
		t.Errorf("nothing warns of the mode: %s", log)
	}
}

func TestLog_holdsNoSecrets(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := shopProgram(t, "--data-dir", data, "--token-auth-file", tokenFile(t), "-v=10")
	kubeconfig := filepath.Join(data, "kubeconfig")
	c := clientFrom(t, kubeconfig)
	c.create("w")
	for token, code := range map[string]int{"secret": http.StatusForbidden, "root": http.StatusOK, "mistyped": http.StatusUnauthorized} {
		c.stranger(token).get(widgetsPath).want(code)
	}
	if err := p.stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	log := p.log.String()
	if !strings.Contains(log, "Authorization: Bearer") {
		t.Error("requests are not logged at all")
	}
	key := config.AuthInfos["shop-admin"].ClientKeyData
	for _, secret := range []string{"Bearer secret", "Bearer root", "mistyped", string(key), base64.StdEncoding.EncodeToString(key),
		"PRIVATE KEY"} {
		if strings.Contains(log, secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
	for line := range strings.Lines(log) {
		if _, after, found := strings.Cut(line, "Authorization: Bearer "); found && !strings.HasPrefix(after, "<masked>") {
			t.Errorf("a token is in the log: %s", line)
		}
	}
}

// By default the log holds warnings and errors, of which a run without trouble has none.
func TestLog_healthy(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"embedded": nil, "files": {"--storage=files"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			for _, life := range []string{"the first start", "a restart"} {
				p := shopProgram(t, append([]string{"--data-dir", data}, args...)...)
				c := clientFrom(t, filepath.Join(data, "kubeconfig"))
				c.watch(widgetsPath + "?watch=1")
				if life == "a restart" {
					c.delete(widgetsPath+"/w", nil).want(http.StatusOK)
				} else {
					c.create("w")
				}
				if err := p.stop(); err != nil || p.log.Len() > 0 {
					t.Errorf("%s: ended with %v, and logged:\n%s", life, err, &p.log)
				}
			}
		})
	}
}
