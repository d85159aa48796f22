package upstream

import (
	"net"
	"testing"
)

func TestTooManyConnectionsAreRefusedUntilSomeEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limited := &connections{Listener: l, most: 2, open: map[*connection]struct{}{}}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := limited.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	dial()
	first := <-accepted
	dial()
	<-accepted
	if n, err := dial().Read(make([]byte, 1)); err == nil {
		t.Errorf("a connection too many was sent %d bytes", n)
	}
	for range 2 { // closing twice counts once
		first.Close()
	}
	dial()
	<-accepted
	if n, err := dial().Read(make([]byte, 1)); err == nil {
		t.Errorf("another connection too many was sent %d bytes", n)
	}
}
