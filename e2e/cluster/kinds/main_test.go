// Package kinds compares every kind of the kube-apiserver that annex envtest gives with those of a real kube-apiserver: the answers
// to every change of one field in creates, updates, patches and applies, the stored objects, discovery and OpenAPI documents.
package kinds

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/e2e/cluster/compare"
	"github.com/annexapi/annex/e2e/cluster/kube"
)

var host *kube.Cluster

// options are those of both servers. Like in controller-runtime's envtest, no controllers run.
func options() kube.Options {
	return kube.Options{Controllers: []string{}, APIServerArgs: []string{"--allow-privileged"}}
}

func TestMain(m *testing.M) {
	os.Exit(kube.Main(m, options(), func(c *kube.Cluster) error {
		host = c
		return nil
	}))
}

// servers are the two servers: the real one, and ours.
type servers struct{ theirs, ours *compare.Server }

// start starts the kube-apiserver of the repository's bin/annex until the test is done.
func start(t *testing.T) servers {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tool, err := filepath.Abs("../../../bin/annex")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := exec.CommandContext(ctx, tool, "envtest", "--dir", t.TempDir()).Output()
	if err != nil {
		t.Fatalf("annex envtest: %v: make differential-kinds builds it", err)
	}
	o := options()
	o.Bin, o.Dir = strings.TrimSpace(string(bin)), t.TempDir()
	cluster, err := kube.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := servers{}
	if s.theirs, err = compare.Connect(host.Admin()); err != nil {
		t.Fatal(err)
	}
	if s.ours, err = compare.Connect(cluster.Admin()); err != nil {
		t.Fatal(err)
	}
	return s
}

// request is sent to both servers.
type request struct {
	// what names it in reports.
	what, method, path, contentType string
	body                            any
	// ours is the body for our server, if it differs by a resource version.
	ours any
}

func to(what, method, path, contentType string, body any) request {
	return request{what: what, method: method, path: path, contentType: contentType, body: body}
}

func (r request) String() string { return fmt.Sprintf("%s: %s %s", r.what, r.method, r.path) }

// ask sends a request to both servers at the same time.
func (s servers) ask(ctx context.Context, r request) (theirs, ours compare.Answer, err error) {
	if r.ours == nil {
		r.ours = r.body
	}
	done := make(chan error, 1)
	go func() {
		var err error
		ours, err = s.ours.Ask(ctx, r.method, r.path, r.contentType, r.ours)
		done <- err
	}()
	theirs, err = s.theirs.Ask(ctx, r.method, r.path, r.contentType, r.body)
	if ourErr := <-done; err == nil {
		err = ourErr
	}
	return theirs, ours, err
}
