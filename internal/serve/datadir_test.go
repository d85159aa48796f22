package serve

import (
	"os"
	"path/filepath"
	"testing"
)

func TestANewDataDirectoryIsIgnoredByGit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		there bool
		want  string
	}{"new": {false, "*\n"}, "there already": {true, ""}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if test.there {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			lock, err := lockDataDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lock.Close() })
			if got, _ := os.ReadFile(filepath.Join(dir, ".gitignore")); string(got) != test.want {
				t.Errorf(".gitignore says %q, want %q", got, test.want)
			}
		})
	}
}
