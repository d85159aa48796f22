package serve

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "socket")
}

func openSocket(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestListenUnix(t *testing.T) {
	path := socketPath(t)
	l := openSocket(t, path)
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("beside it are %v, %v", entries, err)
	}
	seen := map[string]bool{}
	for range 2 {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		seen[conn.RemoteAddr().String()] = true
		conn.Close()
		client.Close()
	}
	if !seen["unix:1"] || !seen["unix:2"] {
		t.Errorf("clients are called %v", seen)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestListenUnix_existingFile(t *testing.T) {
	path := socketPath(t)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), path+" is in use by another program") {
		t.Errorf("one that is in use: %v", err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	l := openSocket(t, path)
	defer l.Close()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	file := filepath.Join(filepath.Dir(path), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ path, want string }{
		"a file":              {file, "exists, but is not a socket"},
		"a directory":         {filepath.Dir(path), "exists, but is not a socket"},
		"a missing directory": {filepath.Join(path+"s", "s"), "no such file or directory"},
		"a long path": {filepath.Join(filepath.Dir(path), strings.Repeat("x", 100)), "bytes, more than the maximum of 90 " +
			"for sockets"},
	} {
		if _, err := listenUnix(
			test.path,
		); err == nil || !strings.HasPrefix(err.Error(), "Options.ListenUnix: ") ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestListenUnix_otherServer(t *testing.T) {
	path := socketPath(t)
	one := openSocket(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other := openSocket(t, path)
	defer other.Close()
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
}
