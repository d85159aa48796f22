package reads

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"
)

// interrupted keeps what it was given when a write fails, as HTTP/2 does with a stream whose client has ended it.
type interrupted struct {
	*httptest.ResponseRecorder
	given []byte
}

func (w *interrupted) Write(p []byte) (int, error) {
	w.given = p
	return 0, errors.New("the stream is closed")
}

func TestWhatAFailedWriteMayStillReadIsNotUsedAnew(t *testing.T) {
	pools := newPools()
	w := &interrupted{ResponseRecorder: httptest.NewRecorder()}
	for range 100 { // buffers that are given back are not all found again
		out := &output{w: w, flusher: w.ResponseRecorder, pools: pools, due: pools.append(nil, []byte("of one client"))}
		if err := out.Flush(); err == nil {
			t.Fatal("the write has not failed")
		}
		pools.append(nil, []byte("of another one"))
		if !bytes.Equal(w.given, []byte("of one client")) {
			t.Fatalf("what may still be written is %q", w.given)
		}
	}
}
