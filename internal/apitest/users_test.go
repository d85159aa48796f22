package apitest_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// user runs a verb below user of the program, with its data directory, and returns what that
// prints.
func (p *process) user(t *testing.T, data string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.Path, append([]string{"user", "--data-dir", data}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &said)
	}
	return string(out)
}

// newUser creates a user and returns the client of the kubeconfig.
func (p *process) newUser(t *testing.T, data, name string, args ...string) *client {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	p.user(t, data, append([]string{"create", name, "--to", kubeconfig}, args...)...)
	info, err := os.Stat(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has mode %v", info.Mode())
	}
	return clientFrom(t, kubeconfig)
}

func TestUsersAreKnownToAServerThatRuns(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	p := prepare(t, "--data-dir", data)
	p.user(t, data, "create", "early", "--group", "system:masters", "--output", "pem", "--to", filepath.Join(p.Dir, "early.pem"))
	p.launch(t)
	defer func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}()
	root := p.newUser(t, data, "root", "--group", "system:masters")
	root.get(widgetsPath).want(http.StatusOK)
	alice := p.newUser(t, data, "alice", "--group", "staff")
	alice.get("/version").want(http.StatusOK)
	alice.get(widgetsPath).refused(http.StatusForbidden, metav1.StatusReasonForbidden, `User "alice" cannot list resource "widgets"`)

	// Of before the authority's first server.
	early := clientFrom(t, filepath.Join(data, "kubeconfig"))
	early.config.CertData, early.config.KeyData = nil, nil
	early.config.CertFile, early.config.KeyFile = filepath.Join(p.Dir, "early.pem"), filepath.Join(p.Dir, "early.pem")
	connect(t, early.config).get(widgetsPath).want(http.StatusOK)
}
