package apitest_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// shortDir returns a directory whose files have paths short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestSocket_authenticationAndAuthorization(t *testing.T) {
	t.Parallel()
	log := newAccessLog(t)
	path := filepath.Join(shortDir(t), "api")
	instance, stop := run(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), ListenUnix: path, AccessLog: log.json()},
	)
	if instance.Socket() != path {
		t.Errorf("it is at %s", instance.Socket())
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	ask := func(token, path string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://socket"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		return response
	}
	for _, test := range []struct {
		token, path string
		code        int
	}{{"", "/readyz", 200}, {"", "/apis", 401}, {"wrong", widgetsPath, 401}, {"secret", widgetsPath, 403}, {"root", widgetsPath, 200}} {
		response := ask(test.token, test.path)
		if response.StatusCode != test.code {
			t.Errorf("%s with the token %q: %d", test.path, test.token, response.StatusCode)
		}
		if line := log.of(response.Header); !strings.HasPrefix(line.Remote, "unix:") {
			t.Errorf("%s comes from %s", test.path, line.Remote)
		}
	}
	transport.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after the end: %v", err)
	}
}

func TestSystemd_notifications(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	if err := told.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	until := func(want string) {
		t.Helper()
		data := make([]byte, 100)
		for {
			n, err := told.Read(data)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if string(data[:n]) == want {
				return
			}
		}
	}
	socket := filepath.Join(dir, "api")
	p := prepare(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--unix-socket", socket)
	p.Env = append(os.Environ(), "NOTIFY_SOCKET="+told.LocalAddr().String(), "WATCHDOG_USEC=100000")
	p.launch(t)
	if !strings.HasSuffix(p.lines[0], " and "+socket) {
		t.Errorf("it says %q", p.lines[0])
	}
	until("READY=1")
	until("WATCHDOG=1")
	if err := p.stop(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	until("STOPPING=1")
}
