package plugin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// forwarding is a running port-forward.
type forwarding struct {
	interrupt func()
	ports     map[string]string // local ports, by the object's ports
	ended     chan int
	errOut    *strings.Builder
}

func forward(t *testing.T, ports ...string) forwarding {
	t.Helper()
	_, dir := openShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	out, printed := io.Pipe()
	f := forwarding{cancel, map[string]string{}, make(chan int, 1), &strings.Builder{}}
	go func() {
		f.ended <- Run(ctx, Options{}, append([]string{
			"--kubeconfig=" + filepath.Join(dir, "kubeconfig"), "--cache-dir=" + filepath.Join(dir, "cache"),
			"port-forward", "wd/a", "--address=127.0.0.1",
		}, ports...), IOStreams{In: strings.NewReader(""), Out: printed, ErrOut: f.errOut})
		printed.Close()
	}()
	lines := bufio.NewReader(out)
	for range ports {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v, exit code %d, %s", err, <-f.ended, f.errOut)
		}
		found := regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)`).FindStringSubmatch(line)
		if found == nil {
			t.Fatalf("printed %q", line)
		}
		f.ports[found[2]] = found[1]
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return f
}

func TestPortForward(t *testing.T) {
	f := forward(t, ":80", ":82")
	for _, port := range []string{"80", "82", "80"} {
		connection, err := net.Dial("tcp", "127.0.0.1:"+f.ports[port])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(connection, "hello")
		answer := bufio.NewReader(connection)
		for _, want := range []string{"port " + port + " of a\n", "hello\n"} {
			if got, err := answer.ReadString('\n'); err != nil || got != want {
				t.Errorf("%q, %v; want %q", got, err, want)
			}
		}
		connection.Close()
	}
	f.interrupt()
	if code := <-f.ended; code != exitInterrupted {
		t.Errorf("exit code %d after an interrupt: %s", code, f.errOut)
	}
}

// As with kubectl, a refused port ends the whole command.
func TestPortForward_closedPort_ends(t *testing.T) {
	f := forward(t, ":81")
	closed, err := net.Dial("tcp", "127.0.0.1:"+f.ports["81"])
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	if code := <-f.ended; code != exitFailure || !strings.Contains(f.errOut.String(), "lost the connection to widget.shop.example.com/a") {
		t.Errorf("exit code %d: %s", code, f.errOut)
	}
}
