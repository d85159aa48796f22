package upstream

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAll_anyLength_readsAll(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*mostBelieved)
	for _, length := range []int64{-1, 0, 1, 5, int64(len(long))} {
		for _, body := range []string{"", "x", "hello", long} {
			for name, from := range map[string]io.Reader{
				"at once": strings.NewReader(body), "byte by byte": iotest.OneByteReader(strings.NewReader(body)),
				"with its end": iotest.DataErrReader(strings.NewReader(body)),
			} {
				if got, err := readAll(from, length); err != nil || string(got) != body {
					t.Errorf("%s, %d bytes said to be %d: %d, %v", name, len(body), length, len(got), err)
				}
			}
			if _, err := readAll(io.MultiReader(strings.NewReader(body), iotest.ErrReader(errSlow)), length); !errors.Is(err, errSlow) {
				t.Errorf("%d bytes said to be %d, and an error: %v", len(body), length, err)
			}
		}
	}
}

var errSlow = errors.New("too slow")

func TestReadAll_noBody_allocatesNoBuffer(t *testing.T) {
	nothing := &bytes.Reader{}
	if made := testing.AllocsPerRun(100, func() { _, _ = readAll(nothing, 0) }); made > 1 {
		t.Errorf("%.0f allocations", made)
	}
}
