package budget

import (
	"testing"
	"time"
)

func TestGarbageIsSparedWhileTheProcessIsBusy(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		gaps []time.Duration // before each collection, from the start on
		live int64
		want int
	}{
		{"in its start", []time.Duration{-4 * time.Second, time.Millisecond, time.Millisecond}, 20 * mib, 100},
		{"idle", []time.Duration{2 * time.Minute, 2 * time.Minute}, 20 * mib, 100},
		{"busy", []time.Duration{time.Minute, 100 * time.Millisecond}, 20 * mib, 320},
		{"busy with nothing", []time.Duration{time.Minute, time.Millisecond}, 0, 6400},
		{"busy and large", []time.Duration{time.Minute, 100 * time.Millisecond}, 200 * mib, 100},
		{"busy, as often as that needs", []time.Duration{time.Minute, time.Millisecond, time.Second, time.Second}, 20 * mib, 320},
		{"no longer busy", []time.Duration{time.Minute, time.Millisecond, time.Millisecond, 10 * time.Second}, 20 * mib, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := &collections{garbage: 64 * mib, last: start, percent: usualPercent, set: func(int) {}}
			now := start
			for _, gap := range c.gaps {
				now = now.Add(gap)
				of.collected(now, c.live)
			}
			if of.percent != c.want {
				t.Errorf("got %d percent, want %d", of.percent, c.want)
			}
		})
	}
}

// The runtime is told, and what it was told is taken back at the end.
func TestCollectionsAreWatched(t *testing.T) {
	told := make(chan int, 100)
	end := spareCollections(64<<20, time.Now().Add(-time.Hour), func(percent int) {
		select {
		case told <- percent:
		default:
		}
	})
	collect := func(until func(percent int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			garbage = make([]byte, 1<<20)
			select {
			case percent := <-told:
				if until(percent) {
					return
				}
			default:
			}
		}
		t.Fatal("the runtime was not told")
	}
	collect(func(percent int) bool { return percent > usualPercent })
	end()
	collect(func(percent int) bool { return percent == usualPercent })
}

var garbage []byte
