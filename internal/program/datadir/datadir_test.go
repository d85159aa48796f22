package datadir_test

import (
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/program/datadir"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRecord_roundTrip(t *testing.T) {
	dir := t.TempDir()
	if r, err := datadir.Read(dir); err != nil || !reflect.DeepEqual(r, datadir.Record{}) {
		t.Errorf("of a new directory: %+v, %v", r, err)
	}
	want := datadir.Record{Server: "shop", Storage: "embedded", StorageOf: map[string]string{"widgets.shop.example.com": "files"},
		Directories: map[string]string{"embedded": "storage", "files": "/srv/objects"}, CreatedBy: "v1"}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := datadir.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != datadir.Format || got.CreatedAt.IsZero() {
		t.Errorf("format %d, created at %v", got.Format, got.CreatedAt)
	}
	want.Format, want.CreatedAt = got.Format, got.CreatedAt
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got.Directory(dir, "embedded") != filepath.Join(dir, "storage") || got.Directory(dir, "files") != "/srv/objects" ||
		got.Directory(dir, "etcd") != "" {
		t.Errorf("directories: %q, %q, %q", got.Directory(dir, "embedded"), got.Directory(dir, "files"), got.Directory(dir, "etcd"))
	}
	info, err := os.Stat(filepath.Join(dir, datadir.RecordName))
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o", info.Mode().Perm())
	}
}

// The same record is not written again: a data directory may be backed up by time stamps.
func TestRecord_unchanged(t *testing.T) {
	dir := t.TempDir()
	r := datadir.Record{Server: "shop", Storage: "embedded", CreatedBy: "v1", CreatedAt: time.Unix(1, 0).UTC()}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, datadir.RecordName)
	long := time.Unix(1000, 0)
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(long) {
		t.Errorf("written again: %v, %v", info.ModTime(), err)
	}
}

func TestRecord_unreadable(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"newer": {`{"format": 2, "createdBy": "v9.9.9", "server": ["a"]}`,
			"data directory DIR has format 2, made by v9.9.9; this program reads formats up to 1: run a newer program, or set " +
				"Options.DataDir to another directory"},
		"empty": {"", "data directory DIR: DIR/annex.json is not a valid record of a data directory: restore it from a copy, or move it " +
			"away so that the server creates a new one"},
		"older": {`{}`, "data directory DIR: DIR/annex.json is not a valid record of a data directory: restore it from a copy, or move it " +
			"away so that the server creates a new one"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, datadir.RecordName), test.content)
			_, err := datadir.Read(dir)
			if want := strings.ReplaceAll(test.want, "DIR", dir); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestPrepare_mode(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	for name, test := range map[string]struct {
		files     []string
		mode      fs.FileMode
		want      fs.FileMode
		tightened bool
		refused   string
	}{
		"private":     {mode: 0o700, want: 0o700},
		"empty":       {mode: 0o755, want: 0o700, tightened: true},
		"used before": {files: []string{"lock", "cert/ca.key"}, mode: 0o775, want: 0o700, tightened: true},
		"of a record": {files: []string{datadir.RecordName}, mode: 0o711, want: 0o700, tightened: true},
		"restored":    {files: []string{"storage.restored/LOCK"}, mode: 0o755, want: 0o700, tightened: true},
		"other files": {files: []string{"letter.txt"}, mode: 0o755, want: 0o755, refused: "has other files and is open to other users " +
			"(mode 0755): chmod 700 DIR"},
		"repository":    {files: []string{".git/config", "lock"}, mode: 0o755, want: 0o755, refused: "has other files"},
		"private files": {files: []string{"letter.txt"}, mode: 0o700, want: 0o700},
		"sticky":        {mode: 0o777 | fs.ModeSticky, want: 0o777, refused: "has other files"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, file := range test.files {
				write(t, filepath.Join(dir, file), "")
			}
			if err := os.Chmod(dir, test.mode); err != nil {
				t.Fatal(err)
			}
			tightened, err := datadir.Prepare(dir)
			if want := strings.ReplaceAll(
				test.refused,
				"DIR",
				dir,
			); (err == nil) != (want == "") ||
				err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			if tightened != test.tightened {
				t.Errorf("tightened: %v", tightened)
			}
			info, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != test.want {
				t.Errorf("mode %04o, want %04o", info.Mode().Perm(), test.want)
			}
		})
	}
}

func TestPrepare_new(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	if tightened, err := datadir.Prepare(dir); tightened || err != nil {
		t.Fatal(tightened, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		t.Errorf("mode %04o", info.Mode().Perm())
	}
	if tightened, err := datadir.Prepare(""); tightened || err != nil {
		t.Error(tightened, err)
	}
}

func TestPrepare_obstructed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := datadir.Prepare(dir)
		want := "data directory " + dir + ": the path, or a directory above it, is a file: set Options.DataDir to another directory"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestExplain_noRight(t *testing.T) {
	for cause, text := range map[error]string{syscall.EACCES: "permission denied", syscall.EROFS: "read-only file system"} {
		err := datadir.Explain("data", &fs.PathError{Op: "open", Path: "data/lock", Err: cause})
		want := "data directory data: this user may not write to it (" + text + "): its owner must chown it, or set Options.DataDir to " +
			"another directory"
		if err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestPrepare_gitignore(t *testing.T) {
	const withObjects = "*\n!/objects/\n!/objects/**\n/objects/.*/\n"
	for name, test := range map[string]struct {
		before    string
		committed []string
		want      string
	}{
		"new":                   {want: "*\n"},
		"objects":               {committed: []string{"objects"}, want: withObjects},
		"objects later":         {before: "*\n", committed: []string{"objects"}, want: withObjects},
		"objects again":         {before: withObjects, committed: []string{"objects"}, want: withObjects},
		"objects no more":       {before: withObjects, want: withObjects},
		"deeper":                {committed: []string{"a/b"}, want: "*\n!/a/\n!/a/b/\n!/a/b/**\n/a/b/.*/\n"},
		"the whole":             {committed: []string{"."}, want: "*\n"},
		"changed by a person":   {before: "*.log\n", committed: []string{"objects"}, want: "*.log\n"},
		"extended by a person":  {before: "*\n!README\n", committed: []string{"objects"}, want: "*\n!README\n"},
		"emptied by a person":   {before: "\n", want: "\n"},
		"unchanged and its own": {before: "*\n", want: "*\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "lock"), "")
			path := filepath.Join(dir, ".gitignore")
			if test.before != "" {
				write(t, path, test.before)
			}
			if _, err := datadir.Prepare(dir, test.committed...); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// Git itself is asked, for the rules of patterns are its own.
func TestPrepare_committed(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git")
	}
	root := t.TempDir()
	data := filepath.Join(root, "data")
	if _, err := datadir.Prepare(data, "objects"); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"kubeconfig", "cert/ca.key", "audit.log", "storage/1.sst", "objects/.annex/state",
		"objects/.annex/journal/1.log",
		"objects/shop.example.com/widgets/default/a.yaml", "objects/core/namespaces/_cluster/default.yaml"} {
		write(t, filepath.Join(data, file), "x")
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), git, append([]string{"-C", root, "-c", "core.excludesFile="}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("init", "-q")
	run("add", ".")
	want := "data/objects/core/namespaces/_cluster/default.yaml\ndata/objects/shop.example.com/widgets/default/a.yaml\n"
	if got := run("ls-files"); got != want {
		t.Errorf("committed:\n%swant\n%s", got, want)
	}
}

func TestUnrecorded_agreesWithDrivers(t *testing.T) {
	dir := t.TempDir()
	if found := datadir.Unrecorded(dir); found != nil {
		t.Errorf("in a new directory: %v", found)
	}
	var want []datadir.Stored
	for _, d := range []driver.Directory{embedded.Dir(""), files.Dir("")} {
		at := d.Location(dir)
		j, err := d.OpenIn(t.Context(), at, driver.Env{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.Present(at); err != nil {
			t.Errorf("%s: %v", d.Name(), err)
		}
		want = append(want, datadir.Stored{Name: d.Name(), Path: at})
	}
	if found := datadir.Unrecorded(dir); !reflect.DeepEqual(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}
