package budget

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fill takes shares of a size for new accounts of a caller until none is left.
func fill(b *Budget, c Caller, bytes int64) (taken []*Account) {
	for {
		a := b.Account(c, nil)
		if !a.TryHold(bytes) {
			return taken
		}
		taken = append(taken, a)
	}
}

func TestLane_oneUser_leavesHalf(t *testing.T) {
	b := New(total)
	fill(b, Caller{User: "greedy"}, total/smallNeed)
	limit := b.lanes[small].limit(Ordinary)
	if used := b.Stats().Used; used > limit/2+total/smallNeed || used < limit/4 {
		t.Errorf("one user took %d of %d", used, limit)
	}
	for i := range 3 { // each of the next users takes half of the rest
		if len(fill(b, Caller{User: fmt.Sprint(i)}, total/smallNeed)) == 0 {
			t.Errorf("user %d found no room", i)
		}
	}
}

func TestLane_reserve_isForPrivilegedAndUrgentRequests(t *testing.T) {
	for name, test := range map[string]struct {
		caller       Caller
		small, large bool
	}{
		"ordinary":   {Caller{User: "late"}, false, false},
		"urgent":     {Caller{User: "late", Class: Urgent}, true, false},
		"privileged": {Caller{User: "late", Class: Privileged}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := New(total)
			for i := range 100 { // enough users to leave nothing
				fill(b, Caller{User: fmt.Sprint(i)}, total/smallNeed)
				b.Account(Caller{User: fmt.Sprint(i)}, nil).TryHold(math.MaxInt64)
			}
			if got := b.Account(test.caller, nil).TryHold(1000); got != test.small {
				t.Errorf("a small need is admitted: %v", got)
			}
			if got := b.Account(test.caller, nil).TryHold(total/smallNeed + 1); got != test.large {
				t.Errorf("a large need is admitted: %v", got)
			}
		})
	}
}

// A user that has filled its part of the lane and of the queue does not delay another user.
func TestLane_fullQueueOfOneUser_delaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		greedy := Caller{User: "greedy"}
		fill(b, greedy, total/smallNeed)
		var refused atomic.Int32
		for range 2 * mostWaiting {
			go func() {
				var busy *BusyError
				if err := b.Account(greedy, nil).Hold(t.Context(), total/smallNeed); errors.As(err, &busy) && busy.RetryAfter() == 5*time.Second {
					refused.Add(1)
				}
			}()
			synctest.Wait()
		}
		if waiting := b.Stats().Waiting; waiting != mostWaiting/2 || refused.Load() != 2*mostWaiting-mostWaiting/2 {
			t.Errorf("%d of one user wait and %d are refused", waiting, refused.Load())
		}
		if other := held(t.Context(), b.Account(Caller{User: "other"}, nil), total/smallNeed); !isDone(other) {
			t.Error("another user waits behind the first")
		}
		time.Sleep(longestWait) // of the bubble's clock: the waiting requests end
		synctest.Wait()
	})
}

func TestLane_queue_usersAndConnectionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		first := b.Account(Caller{User: "first"}, nil)
		hold(t, first, math.MaxInt64)
		var order []string
		wait := func(name string, c Caller) {
			a := b.Account(c, nil)
			go func() {
				if err := a.Hold(t.Context(), math.MaxInt64); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				a.Close()
			}()
			synctest.Wait()
		}
		for i := range 3 {
			wait(fmt.Sprint("a1.", i), Caller{User: "a", Connection: "1"})
		}
		wait("a2.0", Caller{User: "a", Connection: "2"})
		wait("b.0", Caller{User: "b"})
		wait("b.1", Caller{User: "b"})
		wait("root", Caller{User: "root", Class: Privileged})
		first.Close()
		synctest.Wait()
		if got, want := fmt.Sprint(order), "[root a1.0 b.0 a2.0 b.1 a1.1 a1.2]"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
	})
}

// Bytes that clients have to send or read take nothing from the lanes of work.
func TestAccount_Wire_leavesTheLanesOfWork(t *testing.T) {
	b := New(total)
	a := b.Account(Caller{User: "slow"}, nil)
	hold(t, a, 50<<20)
	if err := a.Wire(t.Context(), 1<<20); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.Used != 1<<20 || s.Wire != 1<<20 {
		t.Errorf("on the wire: %+v", s)
	}
	hold(t, a, 3<<20)
	if s := b.Stats(); s.Used != 3<<20 || s.Wire != 0 {
		t.Errorf("at work again: %+v", s)
	}
	a.Close()
	wantUsed(t, b, 0, 0)
}

func TestAccount_Hold_bytesOnTheWireStayCountedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(total)
		another := accounts(b)
		first, second := another(), another()
		hold(t, first, math.MaxInt64)
		if err := second.Wire(t.Context(), 1<<20); err != nil {
			t.Fatal(err)
		}
		waiting := held(t.Context(), second, 50<<20)
		synctest.Wait()
		if s := b.Stats(); s.Wire != 1<<20 {
			t.Errorf("%+v", s)
		}
		first.Close()
		if !isDone(waiting) {
			t.Fatal("it still waits")
		}
		wantUsed(t, b, 50<<20, 0)
	})
}

func TestPlaces_oneUser_leavesHalf(t *testing.T) {
	p := NewPlaces(80, 80) // 70 for ordinary requests
	enter := func(c Caller) (entered int) {
		for p.TryEnter(c) {
			entered++
		}
		return entered
	}
	for _, test := range []struct {
		caller Caller
		want   int
	}{{Caller{User: "a"}, 35}, {Caller{User: "b"}, 17}, {Caller{User: "c"}, 9}, {Caller{User: "root", Class: Privileged}, 9}} {
		if got := enter(test.caller); got != test.want {
			t.Errorf("%s entered %d times, want %d", test.caller.User, got, test.want)
		}
	}
	for range 35 {
		p.Leave(Caller{User: "a"})
	}
	if got := enter(Caller{User: "d"}); got != 17 {
		t.Errorf("after the first has left, another entered %d times", got)
	}
	if one := NewPlaces(1, 1); !one.TryEnter(Caller{}) || one.TryEnter(Caller{User: "b"}) {
		t.Error("a single place is not that of one request")
	}
}

func TestPlaces_full_waitAsManyAsThereArePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(8, 8)
		greedy := Caller{User: "greedy"}
		for range 3 {
			if !p.TryEnter(greedy) {
				t.Fatal("there is no place")
			}
		}
		var entered, refused atomic.Int32
		for range 6 {
			go func() {
				if p.Enter(t.Context(), greedy) {
					entered.Add(1)
				} else {
					refused.Add(1)
				}
			}()
			synctest.Wait()
		}
		if entered.Load() != 0 || refused.Load() != 2 {
			t.Errorf("%d entered and %d were refused while the user had its part", entered.Load(), refused.Load())
		}
		if other := (Caller{User: "other"}); !p.Enter(t.Context(), other) {
			t.Error("another user was refused")
		} else {
			p.Leave(other)
		}
		p.Leave(greedy)
		synctest.Wait()
		if entered.Load() != 1 {
			t.Errorf("%d entered when one had left", entered.Load())
		}
		time.Sleep(longestWait)
		synctest.Wait()
		if entered.Load() != 1 || refused.Load() != 5 {
			t.Errorf("%d entered and %d were refused in the end", entered.Load(), refused.Load())
		}
	})
}
