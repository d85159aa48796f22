// Package gomod reads the files of other projects' modules, which tests serve or compare.
package gomod

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
)

// Dir is where the files of a module are, given as path@version. It is downloaded, and verified
// by the checksum that is known everywhere, but no module comes to depend on it.
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
