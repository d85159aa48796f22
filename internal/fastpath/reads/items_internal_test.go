package reads

import (
	"errors"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

type unwritable struct{}

var errGone = errors.New("the client has gone")

func (unwritable) Write([]byte) (int, error) { return 0, errGone }

// A write over HTTP/2 that has failed may still read its buffer.
func TestFilled_failedWrite_keepsBuffer(t *testing.T) {
	t.Parallel()
	made := 0
	rooms := &sync.Pool{New: func() any {
		made++
		room := make([]byte, 0, convert.ListPiece)
		return &room
	}}
	recorder := httptest.NewRecorder()
	list := encodedList{
		buffers: rooms,
		writer:  &countingWriter{ResponseWriter: recorder},
		items:   verbatim.Fragments{verbatim.NewFragment([]byte("{}")), verbatim.NewFragment([]byte("{}"))},
		head:    []byte(`{"items":[`),
		tail:    []byte("]}"),
	}
	for i := 1; i <= 3; i++ {
		if err := list.Encode(nil, unwritable{}); !errors.Is(err, errGone) {
			t.Fatal(err)
		}
		if made != i {
			t.Errorf("after %d writes that failed, there is room for %d", i, made)
		}
	}
	if err := list.Encode(nil, recorder); err != nil || recorder.Body.String() != `{"items":[{},{}]}` {
		t.Errorf("%v, %s", err, recorder.Body)
	}
}
