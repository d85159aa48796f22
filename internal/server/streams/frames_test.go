package streams

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// frame returns a frame whose body is padded with zeros.
func frame(word uint32, length int, body ...byte) []byte {
	raw := binary.BigEndian.AppendUint32(nil, word)
	raw = binary.BigEndian.AppendUint32(raw, uint32(length))
	return append(raw, append(body, make([]byte, max(0, min(length, maxFrame)-len(body)))...)...)
}

func opens(stream uint32) []byte {
	return frame(0x80030001, 10, binary.BigEndian.AppendUint32(nil, stream)...)
}

type reading struct {
	net.Conn
	from io.Reader
}

func (r reading) Read(p []byte) (int, error) { return r.from.Read(p) }

func TestFrames_expensiveFrames_endConnection(t *testing.T) {
	t.Parallel()
	data := func(length int) []byte { return frame(1, length) }
	ping := frame(0x80030006, 4, 0, 0, 0, 2)
	for name, test := range map[string]struct {
		frames [][]byte
		want   string
	}{
		"streams and data": {[][]byte{opens(1), ping, opens(3), data(0), data(maxFrame), opens(0x80000000 | 5), frame(0x80030001, 3),
			data(1)}, ""},
		"a large frame":            {[][]byte{opens(1), data(maxFrame + 1)}, "a frame of 262145 bytes, and 262144 are accepted at most"},
		"the largest":              {[][]byte{data(0xffffff)}, "a frame of 16777215 bytes"},
		"a large control frame":    {[][]byte{frame(0x80030008, maxFrame+1)}, "a frame of 262145 bytes"},
		"a stream twice":           {[][]byte{opens(3), opens(3)}, "stream 3 is opened after stream 3"},
		"a stream before":          {[][]byte{opens(3), data(7), opens(1)}, "stream 1 is opened after stream 3"},
		"a stream of the server's": {[][]byte{opens(2)}, "stream 2 is opened after stream 0"},
	} {
		sent := bytes.Join(test.frames, nil)
		for _, from := range []io.Reader{bytes.NewReader(sent), iotest.OneByteReader(bytes.NewReader(sent)),
			iotest.HalfReader(bytes.NewReader(sent))} {
			conn := &frames{Conn: reading{from: from}}
			got, err := io.ReadAll(conn)
			if test.want == "" {
				if err != nil || !bytes.Equal(got, sent) {
					t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(sent), err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			if n, again := conn.Read(make([]byte, 1)); n != 0 || again != err {
				t.Errorf("%s: afterwards: %d, %v", name, n, again)
			}
		}
	}
}
