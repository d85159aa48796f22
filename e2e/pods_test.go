package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// startPods runs the server of pods with the pod p, and returns a function that runs kubectl as its administrator.
func startPods(t *testing.T) (*server, func(ctx context.Context, args ...string) *exec.Cmd) {
	t.Helper()
	s := startServer(t, "pods")
	kubectl := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig", s.kubeconfig()}, args...)...)
		cmd.WaitDelay = 10 * time.Second
		return cmd
	}
	create := kubectl(t.Context(), "create", "-f", "-")
	create.Stdin = strings.NewReader(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},
		"spec":{"containers":[{"name":"main","image":"main:1"},{"name":"side","image":"side:1"}]}}`)
	if out, err := create.CombinedOutput(); err != nil {
		t.Fatalf("create: %v\n%s", err, out)
	}
	return s, kubectl
}

// kubectl's verbs for pods take a pod of this server for a pod of a cluster.
func TestPods_kubectlExec(t *testing.T) {
	t.Parallel()
	_, kubectl := startPods(t)
	for _, test := range []struct {
		name           string
		args           []string
		stdin          string
		stdout, stderr string
		code           int
	}{
		{name: "both outputs", args: []string{"exec", "p", "-c", "side", "--", "sh", "-c", "echo out; echo err >&2"}, stdout: "out\n",
			stderr: "err\n"},
		{name: "the exit code", args: []string{"exec", "p", "--", "sh", "-c", "exit 7"}, stderr: "Defaulted container \"main\" out of: main, " +
			"side\ncommand terminated with exit code 7\n", code: 7},
		{name: "the input to its end", args: []string{"exec", "-i", "p", "-c", "main", "--", "wc", "-c"}, stdin: strings.Repeat("x", 1<<20),
			stdout: "1048576\n"},
		{name: "no such program", args: []string{"exec", "p", "-c", "main", "--", "/no/such/program"}, stderr: "no such file or directory",
			code: 1},
		{name: "no such container", args: []string{"exec", "p", "-c", "third", "--", "true"}, stderr: "third", code: 1},
		{name: "no such pod", args: []string{"exec", "q", "--", "true"}, stderr: `Error from server (NotFound): pods "q" not found` + "\n",
			code: 1},
		{name: "attached", args: []string{"attach", "-i", "p", "-c", "side"}, stdin: "hello\n", stdout: "hello\n", stderr: "attached to side\n"},
		{name: "the log", args: []string{"logs", "p", "-c", "side", "--tail", "2"}, stdout: "side of p, line 8\nside of p, line 9\n"},
		{name: "a log that nothing has", args: []string{"logs", "p", "-c", "third"}, stderr: "third", code: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := kubectl(t.Context(), test.args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(test.stdin), &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if code := cmd.ProcessState.ExitCode(); code != test.code || err != nil && !errors.As(err, &exit) {
				t.Errorf("exit code %d, want %d: %v", code, test.code, err)
			}
			if stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("it printed %q and %q, want %q and %q", &stdout, &stderr, test.stdout, test.stderr)
			}
		})
	}
}

func TestPods_kubectlCp(t *testing.T) {
	t.Parallel()
	_, kubectl := startPods(t)
	dir := t.TempDir()
	sent := make([]byte, 8<<20)
	_, _ = rand.Read(sent) // never fails
	if err := os.WriteFile(filepath.Join(dir, "sent"), sent, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"cp", filepath.Join(dir, "sent"), "p:" + filepath.Join(dir, "there"), "-c", "main"},
		{"cp", "p:" + filepath.Join(dir, "there"), filepath.Join(dir, "back"), "-c", "main"},
	} {
		if out, err := kubectl(t.Context(), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	if back, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(back, sent) {
		t.Errorf("%d bytes came back of %d, %v", len(back), len(sent), err)
	}
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)

func TestPods_kubectlPortForward(t *testing.T) {
	t.Parallel()
	_, kubectl := startPods(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s", r.URL.Path) }))
	defer web.Close()
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	cmd := kubectl(ctx, "port-forward", "pod/p", ":"+port)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	found := forwarding.FindStringSubmatch(line)
	if err != nil || found == nil {
		t.Fatalf("kubectl said %q, %v", line, err)
	}
	for i := range 20 {
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(fmt.Sprintf("http://%s/%d", found[1], i))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != fmt.Sprintf("hello /%d", i) {
			t.Fatalf("%q, %v", body, err)
		}
	}
}

// Several tools for desktops and editors use Kubernetes' JavaScript client. npm installs it, so the test only runs on
// request.
func TestPods_exec_javaScriptClient(t *testing.T) {
	t.Parallel()
	if !*foreign {
		t.Skip("run make clients: it installs a client with npm")
	}
	s, _ := startPods(t)
	dir := t.TempDir()
	script, err := os.ReadFile("testdata/clients/exec.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "exec.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(
		t.Context(),
		"npm",
		"install",
		"--no-audit",
		"--no-fund",
		"--no-package-lock",
		"@kubernetes/client-node@1.4.0",
	)
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v\n%s", err, out)
	}
	node := exec.CommandContext(t.Context(), "node", "exec.mjs", s.kubeconfig())
	node.Dir = dir
	var stderr bytes.Buffer
	node.Stderr = &stderr
	out, err := node.Output()
	want := `{"stdout":"out\n","stderr":"err\n","status":"Success","code":0}
{"stdout":"","stderr":"","status":"Failure","code":7}
{"stdout":"1048579\n","stderr":"","status":"Success","code":0}
`
	if err != nil || string(out) != want {
		t.Errorf("node: %v, it printed\n%swant\n%s%s", err, out, want, &stderr)
	}
}
