package budget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	total = 256 << 20
	whole = total - total/smallLane - total/wireLane // the large lane
	most  = whole - whole/reserve                    // of it, for ordinary requests
)

// accounts returns an account of another user at each call.
func accounts(b *Budget) func() *Account {
	users := 0
	return func() *Account {
		users++
		return b.Account(Caller{User: fmt.Sprint("user", users)}, nil)
	}
}

func hold(t *testing.T, a *Account, bytes int64) {
	t.Helper()
	if err := a.Hold(t.Context(), bytes); err != nil {
		t.Fatalf("hold %d: %v", bytes, err)
	}
}

// held is a Hold in another goroutine.
func held(ctx context.Context, a *Account, bytes int64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- a.Hold(ctx, bytes) }()
	return done
}

func isDone(done <-chan error) bool {
	synctest.Wait()
	return len(done) > 0
}

func wantUsed(t *testing.T, b *Budget, used int64, waiting int) {
	t.Helper()
	if s := b.Stats(); s.Used != used || s.Waiting != waiting {
		t.Errorf("%d bytes used and %d requests waiting, want %d and %d", s.Used, s.Waiting, used, waiting)
	}
}

func TestAccount_Hold_waitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		one := accounts(b)
		first, second, third := one(), one(), one()
		hold(t, first, most-(10<<20))
		large := held(t.Context(), second, 20<<20)
		synctest.Wait()
		// It would fit, but it is not its turn.
		after := held(t.Context(), third, 5<<20)
		if isDone(large) || isDone(after) {
			t.Fatal("one was admitted before there was room for the first in the queue")
		}
		wantUsed(t, b, most-(10<<20), 2)
		first.Close()
		if !isDone(large) || !isDone(after) {
			t.Fatal("one still waits although there is room")
		}
		wantUsed(t, b, 25<<20, 0)
		second.Close()
		third.Close()
		wantUsed(t, b, 0, 0)
	})
}

func TestAccount_Hold_largerThanBudget_runsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		one := accounts(b)
		first, huge, last := one(), one(), one()
		hold(t, first, 10<<20)
		alone := held(t.Context(), huge, math.MaxInt64)
		if isDone(alone) {
			t.Fatal("it was admitted beside another")
		}
		first.Close()
		if !isDone(alone) || <-alone != nil {
			t.Fatal("it was not admitted")
		}
		other := held(t.Context(), last, 10<<20)
		if isDone(other) {
			t.Error("another was admitted beside it")
		}
		huge.Close()
		if !isDone(other) {
			t.Error("the other was not admitted after it")
		}
	})
}

func TestAccount_Hold_smallNeeds_haveTheirOwnLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		hold(t, another(), math.MaxInt64)
		for range smallNeed / smallLane * (reserve - 1) / reserve {
			hold(t, another(), total/smallNeed)
		}
		one := another()
		if next := held(t.Context(), one, total/smallNeed); isDone(next) {
			t.Error("small needs have no bound")
		}
	})
}

func TestAccount_Hold_waitEndsWithContextOrBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		hold(t, another(), math.MaxInt64)
		gone, leave := context.WithCancelCause(t.Context())
		left := another()
		leaving := held(gone, left, 5<<20)
		synctest.Wait()
		began := time.Now()
		var busy *BusyError
		if err := another().Hold(t.Context(), 5<<20); !errors.As(err, &busy) || busy.RetryAfter() != time.Second {
			t.Errorf("after waiting: %v", err)
		}
		if waited := time.Since(began); waited != longestWait {
			t.Errorf("it waited %v", waited)
		}
		<-leaving // it waited as long
		cause := errors.New("gone")
		leaving = held(gone, left, 5<<20)
		synctest.Wait()
		leave(cause)
		if err := <-leaving; !errors.Is(err, cause) {
			t.Errorf("the client has gone: %v", err)
		}
		if s := b.Stats(); s.Refused != 2 || s.Waiting != 0 || s.Used != most {
			t.Errorf("%+v", s)
		}
	})
}

func TestAccount_Hold_queueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		first := another()
		hold(t, first, math.MaxInt64)
		for range mostWaiting {
			a := another()
			go func() {
				defer a.Close()
				if err := a.Hold(t.Context(), 5<<20); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		var busy *BusyError
		if err := another().Hold(t.Context(), 5<<20); !errors.As(err, &busy) || busy.RetryAfter() != 5*time.Second {
			t.Errorf("one too many: %v", err)
		}
		first.Close()
		synctest.Wait()
		wantUsed(t, b, 0, 0)
	})
}

func TestAccount_Hold_canceledWait_unblocksNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		hold(t, another(), 10<<20)
		gone, leave := context.WithCancel(t.Context())
		head := held(gone, another(), math.MaxInt64)
		synctest.Wait()
		next := held(t.Context(), another(), 10<<20)
		if isDone(next) {
			t.Fatal("it has overtaken")
		}
		leave()
		if !isDone(next) || !isDone(head) {
			t.Error("it still waits for one that has left")
		}
	})
}

func TestAccount_Hold_grows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		one, other := another(), another()
		hold(t, one, 1000)
		hold(t, one, 500) // it holds more
		wantUsed(t, b, 1000, 0)
		hold(t, one, 50<<20) // and moves to the other lane
		wantUsed(t, b, 50<<20, 0)
		hold(t, other, 80<<20)
		if one.TryHold(200 << 20) {
			t.Error("there is no room for that")
		}
		wantUsed(t, b, 130<<20, 0)
		// Two accounts that each need the other's share do not wait for each other for ever: one releases its share.
		first, second := held(t.Context(), one, 120<<20), held(t.Context(), other, 120<<20)
		if !isDone(first) {
			first, second, one, other = second, first, other, one
		}
		if !isDone(first) || isDone(second) {
			t.Fatal("one was to be admitted")
		}
		wantUsed(t, b, 120<<20, 1)
		one.Close()
		if !isDone(second) {
			t.Fatal("the other still waits")
		}
		wantUsed(t, b, 120<<20, 0)
		other.Close()
		for _, done := range []<-chan error{first, second} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestBudget_nil_hasNoBounds(t *testing.T) {
	var b *Budget
	a := b.Account(Caller{}, nil)
	hold(t, a, math.MaxInt64)
	if !a.TryHold(math.MaxInt64) || From(t.Context()) != nil || a.Answer() != (Price{}) || b.Stats() != (Stats{}) {
		t.Error("no budget has bounds")
	}
	a.Close()
	if From(NewContext(t.Context(), New(0).Account(Caller{}, func() Price { return Price{Byte: 2} }))).Answer().Of(3, 5) != 10 {
		t.Error("a context does not carry its account")
	}
}

// Whatever requests do, the accounts balance and all requests end.
func TestBudget_concurrentRequests_balance(t *testing.T) {
	b := New(Minimum)
	var requests sync.WaitGroup
	for i := range 64 {
		requests.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range 100 {
				a := b.Account(Caller{fmt.Sprint(i % 5), fmt.Sprint(i % 7), Class(i % 3)}, nil)
				for range random.IntN(4) {
					need := int64(1) << random.IntN(28)
					if random.IntN(2) == 0 {
						a.TryHold(need)
						continue
					}
					ctx, cancel := context.WithCancel(t.Context())
					if random.IntN(4) == 0 {
						go cancel()
					}
					var busy *BusyError
					take := a.Hold
					if random.IntN(3) == 0 {
						take = a.Wire
					}
					if err := take(ctx, need); err != nil && !errors.Is(err, context.Canceled) && !errors.As(err, &busy) {
						t.Error(err)
					}
					cancel()
				}
				a.Close()
				a.Close()
			}
		})
	}
	requests.Wait()
	wantUsed(t, b, 0, 0)
}

func TestContainerLimit(t *testing.T) {
	files := func(groups string, limits map[string]string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			if name == "/proc/self/cgroup" && groups != "" {
				return []byte(groups), nil
			}
			if text, ok := limits[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}
	}
	for name, test := range map[string]struct {
		groups string
		limits map[string]string
		want   int64
	}{
		"none":                {"", nil, 0},
		"version 2":           {"0::/\n", map[string]string{"/sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30},
		"version 2, no limit": {"0::/a\n", map[string]string{"/sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"version 2, from above": {"0::/a/b\n", map[string]string{"/sys/fs/cgroup/a/memory.max": "1000\n",
			"/sys/fs/cgroup/a/b/memory.max": "2000\n"}, 1000},
		"version 2, own": {"0::/a/b\n", map[string]string{"/sys/fs/cgroup/a/memory.max": "max\n",
			"/sys/fs/cgroup/a/b/memory.max": "2000\n"}, 2000},
		"version 1":              {"4:cpu:/x\n3:memory:/x\n", map[string]string{"/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n"}, 3000},
		"version 1, host's path": {"3:memory:/x/y\n", map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n"}, 3000},
		"version 1, no limit": {"3:memory:/\n",
			map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": fmt.Sprint(int64(math.MaxInt64) / 4096 * 4096)}, 0},
		"both":                 {"3:memory:/\n0::/\n", map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "3000"}, 3000},
		"what is not a number": {"0::/\n", map[string]string{"/sys/fs/cgroup/memory.max": "much"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := containerLimit(files(test.groups, test.limits)); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestDefault(t *testing.T) {
	if d := Default(); d <= 0 || d > mostByDefault {
		t.Errorf("%d bytes", d)
	}
}
