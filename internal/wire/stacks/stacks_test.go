package stacks_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/annexapi/annex/internal/wire/stacks"
)

func TestGo_functionsWaitForEachOther(t *testing.T) {
	t.Parallel()
	pool := stacks.New()
	for range 20 {
		var all sync.WaitGroup
		var begun atomic.Int32
		together := make(chan struct{})
		for range 50 {
			all.Add(1)
			pool.Go(func() {
				defer all.Done()
				if begun.Add(1) == 50 {
					close(together)
				}
				<-together
			})
		}
		all.Wait()
	}
}

func TestDo_panics(t *testing.T) {
	t.Parallel()
	pool := stacks.New()
	for range 10 {
		done := false
		pool.Do(func() { done = true })
		if !done {
			t.Fatal("it had not returned")
		}
		func() {
			defer func() {
				reason, _ := recover().(string)
				if !strings.HasPrefix(reason, "a mistake\n") || !strings.Contains(reason, "stacks_test.TestDo_panics") {
					t.Errorf("panicked with %v", reason)
				}
			}()
			pool.Do(func() { panic("a mistake") })
			t.Error("it has not panicked")
		}()
	}
	func() {
		defer func() {
			if reason := recover(); reason != http.ErrAbortHandler {
				t.Errorf("panicked with %v", reason)
			}
		}()
		pool.Do(func() { panic(http.ErrAbortHandler) })
	}()
}
