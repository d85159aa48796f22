package annex_test

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// TestMain lets the test binary be the program shop as well.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"shop":   func() { annex.Main(shop()) },
		"broken": func() { annex.Main(annex.Server{Name: "broken", Groups: []annex.Group{{Name: "Bad"}}}) },
	})
}

func TestCommandLine(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE") != "",
		Deadline:      time.Now().Add(time.Minute), // a server that does start ends here
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
			// damage DIR makes a storage with one record and flips a bit of it.
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

// program runs shop serve and returns its first lines and a function that ends it
// and returns its exit error.
func program(t *testing.T, args ...string) (lines []string, stop func() error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "shop")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), link, append([]string{"serve"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	for range 3 {
		if !scanner.Scan() {
			t.Fatalf("the program ended: %v", cmd.Wait())
		}
		lines = append(lines, scanner.Text())
	}
	return lines, func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return cmd.Wait()
	}
}

func TestServeTellsWhereItListensAndEndsInOrder(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	lines, stop := program(t, "--secure-port=0", "--data-dir", data)

	kubeconfig := filepath.Join(data, "kubeconfig")
	if want := "shop listens on https://127.0.0.1:"; !strings.HasPrefix(lines[0], want) {
		t.Errorf("line 1: %q, want %s...", lines[0], want)
	}
	if want := "kubeconfig: " + kubeconfig; lines[1] != want {
		t.Errorf("line 2: %q, want %q", lines[1], want)
	}
	if want := "kubectl --kubeconfig " + kubeconfig + " api-resources"; !strings.HasSuffix(lines[2], want) {
		t.Errorf("line 3: %q, want ...%s", lines[2], want)
	}
	info, err := os.Stat(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig has mode %v", info.Mode())
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Get(config.Host + "/apis/shop.example.com/v1/widgets")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("list: %s", response.Status)
	}
	if err := stop(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
