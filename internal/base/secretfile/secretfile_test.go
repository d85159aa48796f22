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
		0o604: "the file has tokens and is readable or writable by every user of this machine (mode 0604): chmod it to 600",
		0o602: "(mode 0602)",
		0o644: "(mode 0644)",
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
	}
}
