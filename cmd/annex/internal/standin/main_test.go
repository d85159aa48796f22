package standin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// parentOf has the command that a parent starts, as a JSON array: see parent.
const parentOf = "ANNEX_TEST_PARENT_OF"

// parentEnds is set for a parent that ends when it has started its program.
const parentEnds = "ANNEX_TEST_PARENT_ENDS"

// The tests start the programs from their own executable, so it has to behave as the tool does.
func TestMain(m *testing.M) {
	if code, ok := Main(os.Args, os.Stdout, os.Stderr); ok {
		os.Exit(code)
	}
	if command := os.Getenv(parentOf); command != "" {
		os.Exit(parent(command))
	}
	os.Exit(m.Run())
}

// parent starts a program that writes to the same pipe, prints its process ID, and waits for its end.
func parent(command string) int {
	var args []string
	if err := json.Unmarshal([]byte(command), &args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	child := exec.Command(args[0], args[1:]...)
	child.Stdout = os.Stdout
	if err := child.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(child.Process.Pid)
	if os.Getenv(parentEnds) != "" {
		return 0
	}
	_ = child.Wait()
	return 0
}

// call runs a program in this process.
func call(name string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code, ok := Main(append([]string{"/assets/" + name + suffix()}, args...), &out, &errs)
	if !ok {
		return -1, "", "no program"
	}
	return code, out.String(), errs.String()
}

// freeAddress returns an address of loopback on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// started is a program that runs as a process of its own.
type started struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan error
}

func startProgram(t *testing.T, file string, args ...string) *started {
	t.Helper()
	s := &started{cmd: exec.Command(file, args...), ended: make(chan error, 1)}
	s.cmd.Stderr = &s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("%s wrote\n%s", file, s.stderr.String())
		}
	})
	return s
}

// waitFor waits until a URL answers 200. It fails at once if the program ends.
func (s *started) waitFor(t *testing.T, client *http.Client, url string) {
	t.Helper()
	ready := func() bool {
		select {
		case err := <-s.ended:
			t.Fatalf("the program has ended: %v", err)
		default:
		}
		return answers(t, client, url)
	}
	testwait.Until(t, url+" answers", ready)
}

// answers reports whether a URL answers 200.
func answers(t *testing.T, client *http.Client, url string) bool {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// terminate sends SIGTERM, after which the program has to end with exit code 0.
func (s *started) terminate(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(testwait.Patience):
		t.Error("the program goes on after SIGTERM")
	}
}

func TestMain_otherName_isTheTool(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"annex", "/usr/bin/annex", "kube-apiserver-2", "/etcd/annex", "annex.exe"} {
		if code, ok := Main([]string{name, "--version"}, nil, nil); ok || code != 0 {
			t.Errorf("%s: %d, %t", name, code, ok)
		}
	}
}

func TestPersonality_folder(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]Personality{
		"/cache/v1/like-envtest/kube-apiserver": LikeEnvtest,
		"/cache/v1/like-cluster/kube-apiserver": LikeCluster,
		"/like-cluster/bin/kube-apiserver":      LikeEnvtest,
		"kube-apiserver":                        LikeEnvtest,
	} {
		if got := (program{file: file}).personality(); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// oneLine reports a text that is not one line with all of the words.
func oneLine(t *testing.T, text string, words ...string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
		t.Errorf("%q is not one line", text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q lacks %q", text, word)
		}
	}
}
