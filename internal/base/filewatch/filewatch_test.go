package filewatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func TestRun_burstOfChanges_isOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, failures := make(chan fsnotify.Event), make(chan error)
		loads := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			run(ctx, func(event fsnotify.Event) bool { return concerns(event, "tokens.csv") }, events, failures, func() { loads++ })
		}()
		expect := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			if loads != want {
				t.Errorf("%s: read %d times, want %d", what, loads, want)
			}
		}
		time.Sleep(time.Millisecond)
		expect("in the beginning", 1)

		for range 10 {
			events <- fsnotify.Event{Name: "/etc/tokens.csv", Op: fsnotify.Write}
			time.Sleep(time.Millisecond)
		}
		expect("while it is written", 1)
		time.Sleep(debounce)
		expect("when it is written", 2)

		events <- fsnotify.Event{Name: "/etc/other.csv", Op: fsnotify.Write}
		time.Sleep(time.Second)
		expect("another file", 2)
		events <- fsnotify.Event{Name: "/etc/..data", Op: fsnotify.Create}
		time.Sleep(time.Second)
		expect("a mounted secret", 3)
		failures <- errors.New("queue overflow")
		time.Sleep(time.Second)
		expect("lost events", 4)
		time.Sleep(pollInterval)
		expect("after a minute", 5)

		// A file that changes all the time is read nevertheless.
		for range 100 {
			events <- fsnotify.Event{Name: "/etc/tokens.csv", Op: fsnotify.Write}
			time.Sleep(debounce / 5)
		}
		if synctest.Wait(); loads < 5+100/6 {
			t.Errorf("read %d times under constant changes", loads-5)
		}
		cancel()
		<-done
	})
}

func TestRun_replacedOrWrittenFile_isReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "one")
	var mu sync.Mutex
	var log strings.Builder
	logger := funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(line + "\n")
	}, funcr.Options{})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	var current atomic.Value
	var failed atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, "The file", file, func(context.Context) error {
			data, err := os.ReadFile(file)
			if err == nil && string(data) == "broken" {
				err = errors.New("line 1: it is broken")
			}
			if err != nil {
				failed.Add(1)
				return err
			}
			current.Store(string(data))
			return nil
		})
	}()
	has := func(want string) {
		t.Helper()
		testwait.Until(t, "the file is read as "+want, func() bool { return current.Load() == want })
	}
	has("one")
	replace := func(content string) {
		t.Helper()
		write(file+".new", content)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace("two")
	has("two")
	replace("broken")
	testwait.Until(t, "the broken file is refused", func() bool { return failed.Load() > 0 })
	before := failed.Load()
	replace("broken")
	testwait.Until(t, "the broken file is refused again", func() bool { return failed.Load() > before })
	if current.Load() != "two" {
		t.Errorf("got %q after a broken file", current.Load())
	}
	write(file, "three")
	has("three")
	cancel()
	<-done
	if n := strings.Count(log.String(), "it is broken"); n != 1 {
		t.Errorf("logged %d times that the file is broken, want once:\n%s", n, log.String())
	}
}
