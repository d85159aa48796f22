package secretfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/base/secretfile"
)

func TestCheck_modes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	for mode, want := range map[fs.FileMode]string{
		0o600: "",
		0o640: "",
		0o660: "",
		0o604: "(mode 0604): chmod it to 600",
		0o602: "(mode 0602)",
		0o644: "(mode 0644)",
		0o664: "(mode 0664)",
		0o646: "(mode 0646)",
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // the umask does not narrow it
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		err = secretfile.Check(info, "tokens")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%04o: %v, not %q", mode, err, want)
		}
		warning, err := secretfile.CheckChanges(info, "tokens")
		switch {
		case mode&0o002 != 0:
			if err == nil || !strings.Contains(err.Error(), "writable by every user") || !strings.Contains(err.Error(), want) ||
				warning != "" {
				t.Errorf("%04o, that others may change: %v, with the warning %q", mode, err, warning)
			}
		case err != nil || (warning == "") != (want == "") || want != "" && !strings.Contains(warning, "chmod it to 600"):
			t.Errorf("%04o, that others may not change: %v, with the warning %q", mode, err, warning)
		}
	}
}
