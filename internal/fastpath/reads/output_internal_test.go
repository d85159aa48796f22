package reads

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"
)

// interrupted keeps the buffer of a failed write, as HTTP/2 does with a stream that its client has reset.
type interrupted struct {
	*httptest.ResponseRecorder
	given []byte
}

func (w *interrupted) Write(p []byte) (int, error) {
	w.given = p
	return 0, errors.New("the stream is closed")
}

func TestOutput_failedWrite_keepsBuffer(t *testing.T) {
	pools := newPools()
	w := &interrupted{ResponseRecorder: httptest.NewRecorder()}
	for range 100 { // the pool does not return every buffer that was put back
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
