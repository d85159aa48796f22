package standin

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// names returns the names of the files in a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

var programFiles = []string{"etcd" + suffix(), "kube-apiserver" + suffix(), "kubectl" + suffix()}

func TestAssets_secondCall_reuses(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "new", "root")
	dir, err := Assets(root, "v1", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, programFiles) {
		t.Errorf("%q, want %q", got, programFiles)
	}
	if filepath.Base(dir) != string(LikeEnvtest) || !strings.HasPrefix(dir, filepath.Join(root, "v1-")) {
		t.Errorf("the folder is %s", dir)
	}
	before := map[string]os.FileInfo{}
	for _, name := range programFiles {
		if before[name], err = os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, programFiles[0])); err != nil {
		t.Fatal(err)
	}
	again, err := Assets(root, "v1", LikeEnvtest, nil)
	if err != nil || again != dir {
		t.Fatalf("%s, %v; want %s", again, err, dir)
	}
	if got := names(t, dir); !slices.Equal(got, programFiles) {
		t.Errorf("after one was removed: %q, want %q", got, programFiles)
	}
	for _, name := range programFiles[1:] {
		after, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !os.SameFile(before[name], after) {
			t.Errorf("%s is another file: %v", name, err)
		}
	}
	for _, other := range []struct {
		version     string
		personality Personality
	}{{"v2", LikeEnvtest}, {"v1", LikeCluster}} {
		got, err := Assets(root, other.version, other.personality, nil)
		if err != nil || got == dir || filepath.Base(got) != string(other.personality) {
			t.Errorf("%s, %s: %s, %v", other.version, other.personality, got, err)
		}
	}
}

func TestAssets_controllers_areInAFolderOfTheirOwn(t *testing.T) {
	t.Parallel()
	root, folders := t.TempDir(), map[string]bool{}
	for _, controllers := range [][]string{nil, {"all"}, {"deployment-controller", "replicaset-controller"}} {
		dir, err := Assets(root, "v1", LikeCluster, controllers)
		if err != nil {
			t.Fatal(err)
		}
		p := program{file: filepath.Join(dir, "kube-apiserver"+suffix())}
		got, err := p.controllers()
		if err != nil || !slices.Equal(got, controllers) || p.personality() != LikeCluster {
			t.Errorf("%q, %s, %v; want %q", got, p.personality(), err, controllers)
		}
		folders[dir] = true
	}
	if len(folders) != 3 {
		t.Errorf("the folders are %v", folders)
	}
}

func TestCheckControllers_unknown_isRefused(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{nil, {"all"}, {"deployment-controller", "namespace-controller"}} {
		if err := CheckControllers(names); err != nil {
			t.Errorf("%q: %v", names, err)
		}
	}
	if err := CheckControllers([]string{"deployment"}); err == nil || !strings.Contains(err.Error(), `unknown controller "deployment"`) {
		t.Errorf("an unknown controller: %v", err)
	}
}

func TestAssets_concurrentCalls_makeOneFolder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dirs, errs := make([]string, 4), make([]error, 4)
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i := range dirs {
		all.Go(func() {
			<-begin
			dirs[i], errs[i] = Assets(root, "v1", LikeCluster, nil)
		})
	}
	close(begin)
	all.Wait()
	for i := range dirs {
		if errs[i] != nil || dirs[i] != dirs[0] {
			t.Errorf("%s, %v; want %s", dirs[i], errs[i], dirs[0])
		}
	}
	if got := names(t, dirs[0]); !slices.Equal(got, programFiles) {
		t.Errorf("%q, want %q", got, programFiles)
	}
}

func TestAssets_rootIsAFile_namesTheFlag(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := Assets(root, "v1", LikeEnvtest, nil)
	if err == nil || dir != "" {
		t.Fatalf("%s, %v", dir, err)
	}
	oneLine(t, err.Error()+"\n", "make the folder of the programs: ", root, ": name another folder with --dir")
}

func TestAssets_files_areThePrograms(t *testing.T) {
	t.Parallel()
	dir, err := Assets(t.TempDir(), "v1", LikeEnvtest, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"kube-apiserver", []string{"--version"}, "Kubernetes " + kubeVersion + "\n"},
		{"etcd", []string{"--version"}, "etcd Version: " + etcdVersion + "\n"},
		{"kubectl", []string{"options"}, "--kubeconfig"},
	} {
		out, err := exec.Command(filepath.Join(dir, test.name+suffix()), test.args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v: %s", test.name, err, out)
		}
	}
	var exit *exec.ExitError
	out, err := exec.Command(filepath.Join(dir, "kubectl"+suffix()), "--no-such-flag").CombinedOutput()
	if exit, _ = err.(*exec.ExitError); exit == nil || exit.ExitCode() != 1 || !strings.Contains(string(out), "no-such-flag") {
		t.Errorf("a mistake: %v: %s", err, out)
	}
}

// The folder may be on another file system than the tool.
func TestCopyFile_isExecutable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(t.TempDir(), "tool"), filepath.Join(dir, "etcd")
	want := bytes.Repeat([]byte("tool"), 1<<16)
	if err := os.WriteFile(from, want, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := copyFile(from, to); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
	if about, err := os.Stat(to); err != nil || suffix() == "" && about.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", about, err)
	}
	if all := names(t, dir); !slices.Equal(all, []string{"etcd"}) {
		t.Errorf("the folder has %q", all)
	}
}

func TestCopyFile_fails_leavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	to := filepath.Join(dir, "etcd")
	if err := os.MkdirAll(filepath.Join(to, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(from, []byte("tool"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(from, to); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := copyFile(dir, filepath.Join(dir, "kubectl")); err == nil {
		t.Error("a folder was copied")
	}
	if all := names(t, dir); !slices.Equal(all, []string{"etcd"}) {
		t.Errorf("the folder has %q", all)
	}
}
