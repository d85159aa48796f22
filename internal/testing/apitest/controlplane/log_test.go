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
)

// By default the log has only warnings and errors, of which an undisturbed server logs none.
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
	for _, life := range []string{"the first start", "a restart"} {
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
		lines := bufio.NewScanner(out)
		for !strings.HasPrefix(lines.Text(), "try: ") {
			if !lines.Scan() {
				t.Fatalf("%s: the program ended: %v\n%s", life, p.Wait(), &log)
			}
		}
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "data", "kubeconfig"))
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
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil || log.Len() > 0 {
			t.Errorf("%s: ended with %v, and logged:\n%s", life, err, &log)
		}
		for _, watch := range open {
			_ = watch.Body.Close() // the server has closed it
		}
	}
}
