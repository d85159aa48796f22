package systemd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// listen is the service manager's end of the socket.
func listen(t *testing.T) <-chan string {
	t.Helper()
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		data := make([]byte, 100)
		for {
			n, err := conn.Read(data)
			if err != nil {
				return
			}
			told <- string(data[:n])
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done; os.RemoveAll(dir) })
	t.Setenv("NOTIFY_SOCKET", path)
	return told
}

func next(t *testing.T, told <-chan string) string {
	t.Helper()
	select {
	case text := <-told:
		return text
	case <-time.After(testwait.Patience):
		t.Fatal("nothing is told")
		return ""
	}
}

func TestManager_notifies(t *testing.T) {
	told := listen(t)
	t.Setenv("WATCHDOG_USEC", "2000")
	m, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	var alive atomic.Bool
	asked := make(chan struct{}, 1)
	end := m.Watch(t.Context(), func(context.Context) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return alive.Load()
	})
	for range 3 {
		<-asked
	}
	if len(told) > 0 {
		t.Errorf("while it is not alive: %s", <-told)
	}
	m.Ready()
	if got := next(t, told); got != "READY=1" {
		t.Errorf("when it is ready: %s", got)
	}
	alive.Store(true)
	for range 3 {
		if got := next(t, told); got != "WATCHDOG=1" {
			t.Errorf("while it is alive: %s", got)
		}
	}
	end()
	for len(told) > 0 {
		<-told
	}
	m.Stopping()
	for got := next(t, told); got != "STOPPING=1"; got = next(t, told) {
		if got != "WATCHDOG=1" {
			t.Errorf("when it stops: %s", got)
		}
	}
}

func TestManager_none(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	m, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	m.Ready()
	m.Stopping()
	m.Watch(t.Context(), func(context.Context) bool { t.Error("it is asked whether it is alive"); return true })()
	t.Setenv("WATCHDOG_USEC", "often")
	if _, err := FromEnvironment(); err == nil || !strings.Contains(err.Error(), "watchdog of the service manager: ") {
		t.Errorf("a watchdog that is no number: %v", err)
	}
}
