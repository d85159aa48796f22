package streams

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
)

// maxFrame is far larger than the frames of clients: client-go copies in chunks of 32 KiB.
const maxFrame = 256 << 10

// The parts of SPDY that are inspected: the header of a frame, and the stream ID in a frame that opens a stream.
const (
	frameHeader   = 8
	streamNumber  = 4
	controlFrame  = 0x80
	synStream     = 1
	highestStream = 0x7fffffff
)

// frames is the connection of a SPDY client. It returns an error where the SPDY library has too high a bound or none.
// The library buffers 250 frames of up to 16 MiB each. For each stream whose ID is not a new one, it starts a
// goroutine that writes, and so waits for a client that does not read.
type frames struct {
	net.Conn
	head   [frameHeader + streamNumber]byte
	have   int    // bytes of head
	left   uint32 // bytes that follow head
	newest uint32 // stream ID
	failed error
}

func (f *frames) Read(p []byte) (int, error) {
	if f.failed != nil {
		return 0, f.failed
	}
	n, err := f.Conn.Read(p)
	if f.failed = f.follow(p[:n]); f.failed != nil {
		return 0, f.failed
	}
	return n, err
}

// follow inspects the bytes that have been read.
func (f *frames) follow(p []byte) error {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(len(p), int(f.left))
			f.left -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(f.head[f.have:f.wanted()], p)
		f.have += n
		p = p[n:]
		if f.have < f.wanted() {
			continue
		}
		length := f.length()
		if length > maxFrame {
			return fmt.Errorf("SPDY: a frame of %d bytes, and %d are accepted at most", length, maxFrame)
		}
		if f.have > frameHeader {
			number := binary.BigEndian.Uint32(f.head[frameHeader:]) & highestStream
			if number%2 == 0 || number <= f.newest {
				return fmt.Errorf("SPDY: stream %d is opened after stream %d", number, f.newest)
			}
			f.newest = number
			length -= streamNumber
		}
		f.have, f.left = 0, length
	}
	return nil
}

// wanted returns the size of the current frame's head, as far as it is known.
func (f *frames) wanted() int {
	if f.have >= frameHeader && f.head[0]&controlFrame != 0 && binary.BigEndian.Uint16(f.head[2:]) == synStream &&
		f.length() >= streamNumber {
		return frameHeader + streamNumber
	}
	return frameHeader
}

func (f *frames) length() uint32 { return binary.BigEndian.Uint32(f.head[4:]) & 0xffffff }

// framedWriter is a response writer whose hijacked connection is checked by frames.
type framedWriter struct{ http.ResponseWriter }

func (w framedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, _, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	f := &frames{Conn: conn}
	return f, bufio.NewReadWriter(bufio.NewReader(f), bufio.NewWriter(f)), nil
}
