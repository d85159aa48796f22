//go:build linux

package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// On a terminal, the remote side gets the terminal's size and each key as it is typed, and the exit code is returned.
func TestExec_terminal(t *testing.T) {
	_, dir := openShop(t)
	cmd := exec.CommandContext(t.Context(), "kubectl-annex", "exec", "-it", "wd/a", "--", "size")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "HOME="+dir)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var all strings.Builder
	lines := bufio.NewScanner(terminal)
	for lines.Scan() {
		all.WriteString(lines.Text() + "\n")
		switch {
		case strings.Contains(lines.Text(), "100 columns, 40 lines"):
			if err := pty.Setsize(terminal, &pty.Winsize{Rows: 50, Cols: 120}); err != nil {
				t.Fatal(err)
			}
		case strings.Contains(lines.Text(), "120 columns, 50 lines"):
			if _, err := terminal.WriteString("x\x03\r"); err != nil { // Ctrl-C goes to the remote side
				t.Fatal(err)
			}
		}
	}
	var exited *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exited) || exited.ExitCode() != 7 {
		t.Errorf("ended with %v, want the exit code 7", err)
	}
	for _, want := range []string{"terminal true, 100 columns, 40 lines", "terminal true, 120 columns, 50 lines", `typed "x\x03\r"`,
		"command terminated with exit code 7"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the terminal has no %q:\n%s", want, all.String())
		}
	}
}

// When the terminal goes away, the plugin and the remote command end.
func TestExec_terminalCloses_ends(t *testing.T) {
	_, dir := openShop(t)
	cmd := exec.CommandContext(t.Context(), "kubectl-annex", "exec", "-it", "wd/a", "--", "sh", "-c", "echo process $$; exec sleep 600")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "HOME="+dir)
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	there := 0
	for lines := bufio.NewScanner(terminal); there == 0 && lines.Scan(); {
		if _, number, ok := strings.Cut(strings.TrimSpace(lines.Text()), "process "); ok {
			if there, err = strconv.Atoi(number); err != nil {
				t.Fatal(err)
			}
		}
	}
	if there == 0 {
		t.Fatal("the command has not begun")
	}
	terminal.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("the plugin ended well")
	}
	testwait.NoError(t, "the command has ended", func(context.Context) error {
		if err := syscall.Kill(there, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal to %d: %v", there, err)
		}
		return nil
	})
}
