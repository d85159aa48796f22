package scaffold

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplacement_symlink(t *testing.T) {
	home := realPath(t.TempDir())
	for _, dir := range []string{"elsewhere/deep/annex", "src/shop"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(home, "src/annex")
	if err := os.Symlink(filepath.Join(home, "elsewhere/deep/annex"), link); err != nil {
		t.Fatal(err)
	}
	if got := replacement(filepath.Join(home, "src/shop"), link); got != "../annex" {
		t.Errorf("got %s, want ../annex", got)
	}
}

func TestReplacement_relative(t *testing.T) {
	home := t.TempDir()
	for _, test := range []struct{ project, checkout, want string }{
		{"src/shop", "src/annex", "../annex"},
		{"src/team/shop", "src/annex", "../../annex"},
		{"annex/samples/shop", "annex", "../.."},
		{"shop", "shop/third_party/annex", "./third_party/annex"},
		{"shop", "elsewhere/deep/annex", filepath.ToSlash(filepath.Join(realPath(home), "elsewhere/deep/annex"))},
	} {
		checkout := filepath.Join(realPath(home), test.checkout)
		got := replacement(filepath.Join(home, test.project), checkout)
		if got != test.want {
			t.Errorf("%s beside %s: %s, want %s", test.project, test.checkout, got, test.want)
		}
		if shared := strings.HasPrefix(test.want, "."); shared == strings.Contains(replaceNote(got), "other machines do not have") {
			t.Errorf("%s: the note says %s", got, replaceNote(got))
		}
	}
}
