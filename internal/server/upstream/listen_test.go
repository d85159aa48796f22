package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// stranger is a connection of a client that sends nothing.
type stranger struct {
	net.Conn
	address net.Addr
	closed  bool
}

func newStranger(host byte, port int) *stranger {
	return &stranger{address: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: port}}
}

func (s *stranger) RemoteAddr() net.Addr { return s.address }
func (s *stranger) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (s *stranger) Close() error         { s.closed = true; return nil }

// arriving is a listener that accepts the clients sent to the channel.
type arriving chan *stranger

func (a arriving) Accept() (net.Conn, error) { return <-a, nil }
func (a arriving) Close() error              { return nil }
func (a arriving) Addr() net.Addr            { return &net.TCPAddr{} }

// arrive lets clients connect, and returns the server's ends.
func arrive(t *testing.T, c *connections, clients ...*stranger) []*connection {
	t.Helper()
	var accepted []*connection
	for _, s := range clients {
		c.Listener.(arriving) <- s
		conn, err := c.Accept()
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, conn.(*connection))
	}
	return accepted
}

// asked returns a request on a connection, as net/http builds it.
func asked(conn net.Conn) *http.Request {
	return httptest.NewRequest(http.MethodGet, "/", nil).
		WithContext(context.WithValue(context.Background(), http.LocalAddrContextKey, conn.LocalAddr()))
}

func wantClosed(t *testing.T, all []*stranger, want ...int) {
	t.Helper()
	var closed []int
	for i, s := range all {
		if s.closed {
			closed = append(closed, i)
		}
	}
	if !slices.Equal(closed, want) {
		t.Errorf("closed are %v, want %v", closed, want)
	}
}

func TestConnections_fresh_isBoundedByHost(t *testing.T) {
	c := newConnections(make(arriving, 1), 16)
	all := []*stranger{newStranger(1, 1)}
	for port := range 6 {
		all = append(all, newStranger(2, port))
	}
	arrive(t, c, all...)
	wantClosed(t, all, 1, 2) // the oldest two of the host with six connections
}

func TestConnections_fresh_isBoundedInTotal(t *testing.T) {
	c := newConnections(make(arriving, 1), 16)
	var all []*stranger
	for host := range 10 {
		all = append(all, newStranger(byte(host), 1))
	}
	accepted := arrive(t, c, all[:8]...)
	c.end(c.begin(asked(accepted[0]))) // idle from now on
	arrive(t, c, all[8:]...)
	wantClosed(t, all, 1)
}

func TestConnections_full_closesLongestIdle(t *testing.T) {
	c := newConnections(make(arriving, 1), 4)
	var all []*stranger
	for host := range 6 {
		all = append(all, newStranger(byte(host), 1))
	}
	var accepted []*connection
	for i, s := range all[:4] {
		conn := arrive(t, c, s)[0]
		if c.begin(asked(conn)); i > 0 {
			c.end(conn)
		}
		accepted = append(accepted, conn)
	}
	c.end(c.begin(asked(accepted[1]))) // the other connections have been idle for longer
	arrive(t, c, all[4])
	wantClosed(t, all, 2)
	c.end(accepted[0])
	arrive(t, c, all[5])
	wantClosed(t, all, 2, 3)
}

func TestConnections_allBusy_refuses(t *testing.T) {
	c := newConnections(make(arriving, 1), 2)
	all := []*stranger{newStranger(1, 1), newStranger(2, 1), newStranger(4, 1)}
	var busy []*connection
	for _, s := range all[:2] {
		busy = append(busy, arrive(t, c, s)...)
		c.begin(asked(busy[len(busy)-1]))
	}
	if c.add(&connection{Conn: newStranger(3, 1), owner: c, host: "192.0.2.3"}) {
		t.Error("one more was accepted")
	}
	for range 2 { // closing twice counts once
		if err := busy[0].Close(); err != nil {
			t.Error(err)
		}
	}
	arrive(t, c, all[2])
	wantClosed(t, all, 0)
	if len(c.open) != 2 {
		t.Errorf("%d connections are open", len(c.open))
	}
}

// Clients that connect and send nothing do not keep others out, however often they connect.
func TestConnections_silentClients_doNotLockOutOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := newConnections(l, 8)
	server := &http.Server{
		Handler: c.counting(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })),
	}
	go func() { _ = server.Serve(c) }()
	defer server.Close()
	var silent []net.Conn
	for range 64 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "hello" {
		t.Errorf("%q, %v", body, err)
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the oldest is still open: %v", err)
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}
