package controlplane

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// By default the log has only warnings and errors, of which an undisturbed server logs none, whenever it is stopped.
func TestLog_healthy(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "cluster")
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	for _, life := range []struct {
		name  string
		until func(t *testing.T, dir string, out *bufio.Scanner) (end func())
	}{
		{"stopped while it starts", untilStorage},
		{"stopped when it was ready", untilReady},
		{"stopped with open watches", untilWatched},
		{"after a restart", untilWatched},
	} {
		var log bytes.Buffer
		p := exec.CommandContext(t.Context(), name, "serve", "--secure-port=0", "--data-dir=data")
		p.Dir, p.Stderr = dir, &log
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		end := life.until(t, filepath.Join(dir, "data"), bufio.NewScanner(out))
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil || log.Len() > 0 {
			t.Errorf("%s: ended with %v, and logged:\n%s", life.name, err, &log)
		}
		end()
	}
}

// untilStorage returns while a server opens its storage, or soon after.
func untilStorage(t *testing.T, data string, _ *bufio.Scanner) (end func()) {
	testwait.Until(t, "a file of the storage", func() bool {
		_, err := os.Stat(filepath.Join(data, "storage"))
		return err == nil
	})
	return func() {}
}

// untilReady returns when a server is ready.
func untilReady(t *testing.T, _ string, out *bufio.Scanner) (end func()) {
	for !strings.HasPrefix(out.Text(), "try: ") {
		if !out.Scan() {
			t.Fatal("the program ended before it was ready")
		}
	}
	return func() {}
}

// untilWatched returns when two watches of a server are open. end closes them.
func untilWatched(t *testing.T, data string, out *bufio.Scanner) (end func()) {
	untilReady(t, data, out)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var open []*http.Response
	for _, path := range []string{"/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"} {
		watch, err := client.Get(config.Host + path + "?watch=1")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, watch)
	}
	return func() {
		for _, watch := range open {
			_ = watch.Body.Close() // the server has closed it
		}
	}
}
