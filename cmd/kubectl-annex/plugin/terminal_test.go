//go:build linux

package plugin

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// On a terminal, the other side gets its size, and each key as it is typed; and the exit code comes back.
func TestExecPassesTheTerminalOn(t *testing.T) {
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
			if _, err := terminal.WriteString("x\x03\r"); err != nil { // Ctrl-C is the other side's
				t.Fatal(err)
			}
		}
	}
	var exited *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exited) || exited.ExitCode() != 7 {
		t.Errorf("ended with %v, want the exit code 7", err)
	}
	for _, want := range []string{"terminal true, 100 columns, 40 lines", "terminal true, 120 columns, 50 lines", `typed "x\x03\r"`, "command terminated with exit code 7"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the terminal has no %q:\n%s", want, all.String())
		}
	}
}
