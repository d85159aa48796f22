package query

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// deadlined is a response writer that records its write deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	during, after time.Time
}

func (d *deadlined) Write(b []byte) (int, error) {
	d.during = d.after
	return d.ResponseRecorder.Write(b)
}

func (d *deadlined) SetWriteDeadline(at time.Time) error {
	d.after = at
	return nil
}

// A stream of HTTP/2 is reset when its write deadline passes, even while nothing is written.
func TestEvents_writeDeadlineEndsWithTheWrite(t *testing.T) {
	t.Parallel()
	w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
	events := openEvents(w)
	for name, write := range map[string]func() error{
		"event": func() error { return events.event("ADDED", "7", []byte("{}")) },
		"beat":  events.beat,
	} {
		w.during = time.Time{}
		if err := write(); err != nil || w.during.IsZero() || !w.after.IsZero() {
			t.Errorf("%s: the deadline was %v while it was written, and is %v: %v", name, w.during, w.after, err)
		}
	}
	if w.Code != http.StatusOK {
		t.Errorf("answered with %d", w.Code)
	}
}
