package upstream

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// pieces is a connection that records every write.
type pieces struct {
	net.Conn
	stuck chan struct{} // blocks writes until it is closed; nil blocks none

	mu     sync.Mutex
	wrote  []string
	closed bool
	err    error
}

func (p *pieces) Write(b []byte) (int, error) {
	if p.stuck != nil {
		<-p.stuck
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	p.wrote = append(p.wrote, string(b))
	return len(b), nil
}

func (p *pieces) SetWriteDeadline(time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrote = append(p.wrote, "deadline")
	return nil
}

func (p *pieces) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

func (p *pieces) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.wrote, "|")
}

func newHeld() (*heldConn, *pieces) {
	below := &pieces{}
	return &heldConn{Conn: below, buffers: &sync.Pool{}}, below
}

func write(t *testing.T, c net.Conn, data string) {
	t.Helper()
	if n, err := c.Write([]byte(data)); err != nil || n != len(data) {
		t.Fatalf("write of %.10q: %d, %v", data, n, err)
	}
}

func TestHeldConn_Hold_writesTogether(t *testing.T) {
	c, below := newHeld()
	c.armed = true // prevents the timer, however slow the test is
	write(t, c, "a")
	c.Hold()
	c.Hold()
	write(t, c, "b")
	write(t, c, "c")
	c.Release()
	write(t, c, "d")
	c.Release()
	write(t, c, "e")
	if got := below.all(); got != "a|bcd|e" {
		t.Errorf("wrote %q", got)
	}
}

func TestHeldConn_Hold_isBounded(t *testing.T) {
	c, below := newHeld()
	c.Hold()
	write(t, c, "a")
	testwait.Until(t, "what is held leaves by itself", func() bool { return below.all() == "a" })
	write(t, c, strings.Repeat("b", heldBytes))
	if got := len(below.all()); got < heldBytes {
		t.Errorf("%d bytes have left", got)
	}
}

// A list would be two system calls for each 64 KiB if the last record were written alone.
func TestHeldConn_Hold_writesTheLastRecordWithTheOthers(t *testing.T) {
	c, below := newHeld()
	c.armed = true // prevents the timer, however slow the test is
	c.Hold()
	const record = 16<<10 + 22
	for range heldBytes/record + 1 {
		write(t, c, strings.Repeat("a", record))
	}
	below.mu.Lock()
	defer below.mu.Unlock()
	var sizes []int
	for _, written := range below.wrote {
		sizes = append(sizes, len(written))
	}
	if len(sizes) != 1 || sizes[0] <= heldBytes {
		t.Errorf("writes of %d bytes, want a single one of more than %d", sizes, heldBytes)
	}
}

// TLS sends its close notification, after which nothing can be written.
func TestHeldConn_SetWriteDeadline_flushesFirst(t *testing.T) {
	c, below := newHeld()
	c.Hold()
	write(t, c, "a")
	if err := c.SetWriteDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := below.all(); got != "a|deadline" {
		t.Errorf("%q", got)
	}
	write(t, c, "b")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(below.all(), "deadline", ""); !strings.HasSuffix(got, "b") || !below.closed {
		t.Errorf("%q, closed %t", got, below.closed)
	}
}

func TestHeldConn_failedFlush_nextWriteFails(t *testing.T) {
	c, below := newHeld()
	below.err = errors.New("gone")
	c.Hold()
	write(t, c, "a")
	c.Release()
	if _, err := c.Write([]byte("b")); !errors.Is(err, below.err) {
		t.Errorf("the next write: %v", err)
	}
	if !below.closed {
		t.Error("what reads from the connection goes on")
	}
}

// If the client does not read, only the deadline or the close can end the write.
func TestHeldConn_blockedWrite_delaysNoDeadline(t *testing.T) {
	c, below := newHeld()
	below.stuck = make(chan struct{})
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = c.Write([]byte("a"))
	}()
	testwait.Until(t, "the write is under way", func() bool {
		if c.mu.TryLock() {
			c.mu.Unlock()
			return false
		}
		return true
	})
	if err := errors.Join(c.SetWriteDeadline(time.Now()), c.Close()); err != nil {
		t.Error(err)
	}
	close(below.stuck)
	<-wrote
}

func TestHeldConn_Gather_writesTogether(t *testing.T) {
	headers, body := strings.Repeat("h", 10), strings.Repeat("b", 100)
	c, below := newHeld()
	c.armed = true // prevents the timer, however slow the test is
	write(t, c, "a")
	c.Gather(len(body))
	write(t, c, headers)
	if got := below.all(); got != "a" {
		t.Errorf("headers have left alone: %q", got)
	}
	write(t, c, body)
	write(t, c, "z")
	if got := below.all(); got != "a|"+headers+body+"|z" {
		t.Errorf("wrote %q", got)
	}

	// A response of heldBytes or more would always have to wait for the timer.
	c.Gather(heldBytes)
	write(t, c, "large")
	if got := below.all(); !strings.HasSuffix(got, "|large") {
		t.Errorf("wrote %q", got)
	}
}

func TestHeldConn_Gather_missingBytes_endsByItself(t *testing.T) {
	c, below := newHeld()
	c.Gather(1000)
	write(t, c, "a")
	testwait.Until(t, "what came instead leaves by itself", func() bool { return below.all() == "a" })
	write(t, c, "b")
	if got := below.all(); got != "a|b" {
		t.Errorf("wrote %q: what did not come is waited for again", got)
	}
}

func TestLocalAddr_Gather_singleRequest_doesNothing(t *testing.T) {
	below := &pieces{}
	var listener connections
	address := &localAddr{connection: &connection{owner: &listener}}
	c := &address.connection.held
	c.Conn, c.buffers, c.armed = below, &sync.Pool{}, true // prevents the timer, however slow the test is
	answer := func() {
		address.Gather(100)
		write(t, c, "headers")
		write(t, c, strings.Repeat("b", 100))
	}
	listener.answering.Store(1)
	answer()
	listener.answering.Store(2)
	answer()
	if got, want := strings.ReplaceAll(below.all(), strings.Repeat("b", 100), "body"), "headers|body|headersbody"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
}
