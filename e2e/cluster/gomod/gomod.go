// Package gomod reads the files of other projects' modules, which tests serve or compare.
package gomod

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// Dir returns the directory of a module's files, given as path@version. The module is downloaded, and verified by the
// public checksum database, but becomes no dependency of any module.
func Dir(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "PWD=")
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if json.Unmarshal(out, &answer) != nil || answer.Dir == "" {
		t.Fatalf("%s: %v %s", cmd, err, answer.Error)
	}
	return answer.Dir
}
