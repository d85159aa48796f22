package standin

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// A test that is killed cannot stop its servers.
func TestPrograms_killedParent_end(t *testing.T) {
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	secure, address := writeCertificates(t, dir), freeAddress(t)
	etcd := freeAddress(t)
	for name, test := range map[string]struct {
		client *http.Client
		url    string
		args   []string
	}{
		"kube-apiserver": {secure, "https://" + address + "/readyz", envtestFlags(dir, address, etcd)},
		"etcd":           {http.DefaultClient, "http://" + etcd + "/health", etcdFlagsOfEnvtest(dir, etcd, freeAddress(t))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killParent(t, append([]string{filepath.Join(assets, name+suffix())}, test.args...), func() bool {
				return answers(t, test.client, test.url)
			})
		})
	}
}

// A parent that starts a program and ends at once has ended before the program looks for it.
func TestPrograms_parentEndsAtOnce_end(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system gives no evidence that the first parent has ended")
	}
	t.Parallel()
	assets, err := Assets(t.TempDir(), "test", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	command, err := json.Marshal(append([]string{filepath.Join(assets, "etcd")}, etcdFlagsOfEnvtest(t.TempDir(), address, freeAddress(t))...))
	if err != nil {
		t.Fatal(err)
	}
	// The pipe is closed when the program has ended.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), parentOf+"="+string(command), parentEnds+"=true")
	parent.Stdout, parent.SysProcAttr = w, newSession()
	err = parent.Run()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(testwait.Patience)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		if p, err := os.FindProcess(pid); err == nil && pid > 0 {
			_ = p.Kill()
		}
		t.Fatalf("the program goes on without its parent: %v", err)
	}
}

// killParent starts a parent that starts a program, kills the parent when the program is ready, and waits for the
// program's end.
func killParent(t *testing.T, command []string, ready func() bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	// The pipe is closed when the last process that has inherited it has ended.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), parentOf+"="+string(encoded))
	parent.Stdout = w
	err = parent.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}()
	if err := r.SetReadDeadline(time.Now().Add(testwait.Patience)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the parent has started nothing: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if p, err := os.FindProcess(pid); err == nil && !ended {
			_ = p.Kill()
		}
	}()
	testwait.Until(t, "the program is ready", ready)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Fatalf("the program goes on without its parent: %v", err)
	}
	ended = true
	if ready() {
		t.Error("the program still answers")
	}
}
