package streams

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
)

// maxFrame is far more than clients send at once: client-go copies in pieces of 32 KiB.
const maxFrame = 256 << 10

// The parts of SPDY that are looked at: the header of a frame, and the number of the stream in one that
// opens it.
const (
	frameHeader   = 8
	streamNumber  = 4
	controlFrame  = 0x80
	synStream     = 1
	highestStream = 0x7fffffff
)

// frames is the connection of a client that speaks SPDY. It fails at what the library above bounds too
// high or not at all: that keeps 250 frames of up to 16 MiB each, and starts a goroutine for each stream
// whose number is not a new one, which writes and so waits for a client that does not read.
type frames struct {
	net.Conn
	head   [frameHeader + streamNumber]byte
	have   int    // of head
	left   uint32 // of what follows it
	newest uint32 // stream
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

// follow looks at what has been read.
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

// wanted is how much of the head there is to be, as far as that is known.
func (f *frames) wanted() int {
	if f.have >= frameHeader && f.head[0]&controlFrame != 0 && binary.BigEndian.Uint16(f.head[2:]) == synStream &&
		f.length() >= streamNumber {
		return frameHeader + streamNumber
	}
	return frameHeader
}

func (f *frames) length() uint32 { return binary.BigEndian.Uint32(f.head[4:]) & 0xffffff }

// framed is a response whose connection speaks SPDY when it is hijacked.
type framed struct{ http.ResponseWriter }

func (w framed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, _, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	f := &frames{Conn: conn}
	return f, bufio.NewReadWriter(bufio.NewReader(f), bufio.NewWriter(f)), nil
}
