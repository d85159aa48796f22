package mvcc_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

func TestExpiry_order(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	createFor(t, pods, "late", 60)
	createFor(t, pods, "early", 10)
	create(t, pods, "forever")
	w := watchFrom(t, pods, 4, storage.Everything)
	clock.Step(9 * time.Second)
	create(t, pods, "after-9") // no object has expired before it
	expect(t, w, "ADDED after-9@5")
	clock.Step(time.Second)
	expect(t, w, "DELETED early@6")
	clock.Step(time.Hour)
	expect(t, w, "DELETED late@7")
	get(t, pods, "forever")
}

func TestExpiry_soonerThanPending(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	w := watchFrom(t, pods, 1, storage.Everything)
	for i := range 50 {
		name := fmt.Sprint(i)
		createFor(t, pods, "late-"+name, 1_000_000)
		createFor(t, pods, name, 10)
		expect(t, w, fmt.Sprintf("ADDED late-%s@%d", name, 3*i+2), fmt.Sprintf("ADDED %s@%d", name, 3*i+3))
		clock.Step(10 * time.Second)
		expect(t, w, fmt.Sprintf("DELETED %s@%d", name, 3*i+4))
	}
}

func TestExpiry_manyAtOnce(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	const objects = 600 // more than one batch
	for i := range objects {
		createFor(t, pods, fmt.Sprint(i), 10)
	}
	w := watchFrom(t, pods, objects+1, storage.Everything)
	clock.Step(10 * time.Second)
	for range objects {
		next(t, w)
	}
	if list, err := listAt(pods, 0, storage.Everything); err != nil || len(list.Items) != 0 {
		t.Errorf("%d objects are left: %v", len(list.Items), err)
	}
}

// TestGuaranteedUpdate_ttl creates an object for 60 seconds and updates it after 20.
func TestGuaranteedUpdate_ttl(t *testing.T) {
	tests := []struct {
		name    string
		ttl     *uint64
		expires time.Duration // after the update; 0 for never
	}{
		{"none given keeps the expiry", nil, 40 * time.Second},
		{"a new one counts from now", ptr.To[uint64](90), 90 * time.Second},
		{"a shorter one too", ptr.To[uint64](5), 5 * time.Second},
		{"zero is for ever", ptr.To[uint64](0), 0},
	}
	for _, test := range tests {
		for _, suggested := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, suggestion %v", test.name, suggested), func(t *testing.T) {
				clock := newClock()
				_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
				createFor(t, pods, "a", 60)
				clock.Step(20 * time.Second)
				var suggestion runtime.Object
				if suggested {
					suggestion = get(t, pods, "a")
				}
				err := pods.GuaranteedUpdate(t.Context(), key("a"), &example.Pod{}, false, nil,
					func(object runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
						if meta.TTL != 40 {
							t.Errorf("%d seconds are said to be left, want 40", meta.TTL)
						}
						object.(*example.Pod).Annotations = nil
						return object, test.ttl, nil
					}, suggestion)
				if err != nil {
					t.Fatal(err)
				}
				if left := secondsLeft(t, pods); left != int64(test.expires/time.Second) {
					t.Errorf("%d seconds are left, want %v", left, test.expires)
				}
				if test.expires == 0 {
					return
				}
				w := watchFrom(t, pods, 3, storage.Everything)
				clock.Step(test.expires - time.Second)
				create(t, pods, "b")
				expect(t, w, "ADDED b@4")
				clock.Step(time.Second)
				expect(t, w, "DELETED a@5")
			})
		}
	}
}

func TestSecondsLeft_isRoundedUp(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	createFor(t, pods, "a", 60)
	clock.Step(58*time.Second + 500*time.Millisecond)
	if left := secondsLeft(t, pods); left != 2 {
		t.Errorf("%d seconds are left, want 2", left)
	}
}

// secondsLeft returns the remaining lifetime of object a, by an update that changes nothing.
func secondsLeft(t *testing.T, pods storage.Interface) (left int64) {
	t.Helper()
	err := pods.GuaranteedUpdate(t.Context(), key("a"), &example.Pod{}, false, nil,
		func(object runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
			left = meta.TTL
			return object, nil, nil
		}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func TestExpiry_readOnly_isRetried(t *testing.T) {
	clock, j := newClock(), newLedger()
	_, pods := open(t, j, mvcc.Options{Clock: clock})
	createFor(t, pods, "a", 10)
	setTrouble := func(err error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err = err
	}
	setTrouble(errDisk)
	clock.Step(10 * time.Second)
	select {
	case <-j.asked: // by the deletion, which is then rejected
	case <-time.After(patience):
		t.Fatal("the core does not try to delete the object")
	}
	setTrouble(nil)
	w := watchFrom(t, pods, 2, storage.Everything)
	// The next attempt is some time after the rejection, which may not have happened yet.
	testwait.Until(t, "the object is deleted", func() bool {
		clock.Step(time.Minute)
		select {
		case event := <-w.ResultChan():
			if got := describe(watch.Event{Type: event.Type, Object: event.Object.(runtime.CacheableObject).GetObject()}); got != "DELETED a@3" {
				t.Errorf("got %s", got)
			}
			return true
		default:
			return false
		}
	})
}
