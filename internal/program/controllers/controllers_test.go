package controllers_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/controllers"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// named returns controllers; those with a question mark are off.
func named(names ...string) []define.Controller {
	var all []define.Controller
	for _, name := range names {
		name, off := strings.CutSuffix(name, "?")
		all = append(all, define.Controller{Name: name, Off: off})
	}
	return all
}

func TestSelect(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ all, selection, want string }{
		{"a b c", "*", "a b c"},
		{"a b c", "", ""},
		{"a b c", "b", "b"},
		{"a b c", "c a", "a c"},
		{"a b c", "* -b", "a c"},
		{"a b c", "-b *", "a c"},
		{"a b c", "-b", ""},
		{"a b c", "b -b", ""},
		{"a b? c?", "*", "a"},
		{"a b? c?", "* c", "a c"},
		{"a b? c?", "c", "c"},
		{"a b? c?", "all", "a b c"},
		{"a b? c?", "all -a -c", "b"},
		{"a b?", "-all", `unknown controller "all"; there are a, b`},
		{"", "*", ""},
		{"a b", "d", `unknown controller "d"; there are a, b`},
		{"a", "* -d", `unknown controller "d"; there is only a`},
		{"", "d", `unknown controller "d"; there are none`},
	} {
		selected, err := controllers.Select(named(strings.Fields(test.all)...), strings.Fields(test.selection))
		var names []string
		for _, c := range selected {
			names = append(names, c.Name)
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%q of %q: got %q, want %q", test.selection, test.all, got, test.want)
		}
	}
}

func TestRun_failure_restartsWithBackoff(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan time.Time)
	c := define.Controller{Name: "c", Run: func(ctx context.Context, env any) error {
		began <- clock.Now()
		if clock.Now().Sub(time.Unix(0, 0))%2 == 0 {
			panic("no")
		}
		return errors.New("no")
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		controllers.Run(ctx, []define.Controller{c}, nil, clock)
	}()
	last := <-began
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		testwait.Until(t, "the timer is set", clock.HasWaiters)
		clock.Step(want * time.Second)
		next := <-began
		if got := next.Sub(last); got != want*time.Second {
			t.Errorf("waited %s, not %d s", got, want)
		}
		last = next
	}
	cancel()
	<-done
}

func TestRun_end(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var runs atomic.Int32
	type env struct{}
	all := []define.Controller{
		{Name: "worker", Run: func(context.Context, any) error { runs.Add(1); cancel(); return nil }},
		{Name: "watcher", Run: func(ctx context.Context, h any) error {
			if h != (env{}) {
				t.Errorf("env %v", h)
			}
			<-ctx.Done()
			return ctx.Err()
		}},
	}
	controllers.Run(ctx, all, env{}, clocktesting.NewFakeClock(time.Unix(0, 0)))
	if n := runs.Load(); n != 1 {
		t.Errorf("the worker ran %d times", n)
	}
}
