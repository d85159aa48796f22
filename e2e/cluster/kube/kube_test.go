package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes the test binary a program that starts another one.
const childVariable = "ANNEX_KUBE_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		p, err := Run(context.Background(), dir, script("exec sleep 600"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		select {}
	}
	os.Exit(m.Run())
}

func script(text string) Program {
	return Program{Name: "script", Path: "/bin/sh", Args: func([]int) []string { return []string{"-c", text} }}
}

// listener returns a script that gets a port.
func listener(text string, ready func(context.Context, []int) error) Program {
	p := script(text)
	p.Ports, p.Ready = 1, ready
	return p
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestProcess_starterKilled_ends(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ctx := testContext(t)
	for syscall.Kill(pid, 0) == nil {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(stat), ") Z ") {
			break // dead, and its new parent has not reaped it
		}
		if ctx.Err() != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			t.Fatal("the process outlives the one that started it")
		}
	}
}

func TestStop_endsChildren(t *testing.T) {
	p, err := Run(testContext(t), t.TempDir(), script("sleep 600 & wait"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if p.Running() {
		t.Error("it runs after it was killed")
	}
	for testContext(t).Err() == nil {
		if err := syscall.Kill(-p.PID(), 0); errors.Is(err, syscall.ESRCH) {
			return
		}
	}
	t.Error("its group outlives it")
}

func TestRun_takenPort_isReplaced(t *testing.T) {
	first := 0
	ready := func(_ context.Context, ports []int) error {
		if first == 0 {
			first = ports[0]
		}
		if ports[0] == first {
			return errors.New("not this one")
		}
		return nil
	}
	dir := t.TempDir()
	text := `test -e ` + dir + `/tried && exec sleep 600; touch ` + dir + `/tried; echo "bind: address already in use"; exit 1`
	p, err := Run(testContext(t), dir, listener(text, ready))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if p.Port(0) == first {
		t.Error("the port is the same")
	}
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Port(0))); err != nil {
		t.Errorf("the port was not free: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestRun_failure_includesLog(t *testing.T) {
	never := func(context.Context, []int) error { return errors.New("it is asleep") }
	if _, err := Run(testContext(t), t.TempDir(), listener("echo no such flag; exit 2", never)); err == nil ||
		!strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("a program that ends: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Run(
		ctx,
		t.TempDir(),
		listener("sleep 600", never),
	); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "it is asleep") {
		t.Errorf("a program that is never ready: %v", err)
	}
	if _, err := Run(
		ctx,
		t.TempDir(),
		Program{Name: "none", Path: "/does/not/exist", Args: func([]int) []string { return nil }},
	); !errors.Is(
		err,
		fs.ErrNotExist,
	) {
		t.Errorf("a program that does not exist: %v", err)
	}
	if _, err := Start(
		ctx,
		Options{Bin: t.TempDir(), Dir: t.TempDir()},
	); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "make cluster") {
		t.Errorf("a cluster without programs: %v", err)
	}
}
