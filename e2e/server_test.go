package e2e

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/annexapi/annex/internal/testing/testlog"
)

// server is a server's process and the state that outlives it: its data directory and, once it has run, its port.
type server struct {
	program string
	dir     string
	port    int
	flags   []string

	cmd    *exec.Cmd
	stderr *testlog.Buffer
}

// startServer runs a program of bin until the test is over, on a free port.
func startServer(t *testing.T, program string, flags ...string) *server {
	t.Helper()
	return startServerOn(t, program, 0, flags...)
}

func startServerOn(t *testing.T, program string, port int, flags ...string) *server {
	t.Helper()
	s := &server{program: program, dir: filepath.Join(t.TempDir(), "data"), port: port, flags: flags}
	s.start(t)
	t.Cleanup(func() {
		if s.cmd != nil {
			s.stop(t)
		}
		if t.Failed() && s.stderr.String() != "" {
			t.Logf("%s said:\n%s", program, s.stderr)
		}
	})
	return s
}

// start starts the process and returns when it has printed that it listens. If it ran before, it uses the same port.
func (s *server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(
		filepath.Join(bin, s.program),
		append([]string{"serve", "--data-dir", s.dir, "--secure-port", fmt.Sprint(s.port)}, s.flags...)...)
	s.cmd.Dir = filepath.Dir(s.dir) // samples keep files beside their data
	if s.stderr == nil {
		s.stderr = &testlog.Buffer{}
	}
	s.cmd.Stderr = s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A hanging server must not hang the test: without this timer there would be no line.
	hung := time.AfterFunc(time.Minute, func() { s.cmd.Process.Kill() })
	defer hung.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		err := s.cmd.Wait()
		s.cmd = nil
		t.Fatalf("%s ended before it listened: %v\n%s", s.program, err, s.stderr)
	}
	_, address, _ := strings.Cut(strings.TrimSpace(line), "https://")
	address, _, _ = strings.Cut(address, " and ") // the address of plain HTTP
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatalf("%s says %q, which names no address: %v", s.program, line, err)
	}
	if _, err := fmt.Sscan(port, &s.port); err != nil {
		t.Fatalf("%s says %q: %v", s.program, line, err)
	}
}

// panicked matches messages about a panic, of the runtime and in logs. Some lines mention that there was none.
var panicked = regexp.MustCompile(`panic: |panicked: true|request panicked|(?i)observed a panic`)

// stop asks the process to end and fails the test unless it does so in an orderly way.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	hung := time.AfterFunc(time.Minute, func() { s.cmd.Process.Kill() })
	defer hung.Stop()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", s.program, err, s.stderr)
	}
	if panicked.MatchString(s.stderr.String()) {
		t.Errorf("%s panicked:\n%s", s.program, s.stderr)
	}
	s.cmd = nil
}

// kill ends the process as kill -9 does.
func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.cmd.Wait()
	s.cmd = nil
}

func (s *server) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }

func (s *server) url() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// config returns the administrator's config, without client-side rate limits.
func (s *server) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// restartPort returns a free port that stays free while no process listens on it: it is outside of the range from
// which the kernel chooses ephemeral ports.
func restartPort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port between 20000 and 30000")
	return 0
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
