package dialed

import (
	"io"
	"net"
	"testing"
)

func TestClose_endsAllConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var c Connections
	var accepted []net.Conn
	for range 2 {
		if _, err := c.Dial(t.Context(), "tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted = append(accepted, conn)
	}
	c.Close()
	for i, conn := range accepted {
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("connection %d: %v, want the end", i, err)
		}
	}
	if _, err := c.Dial(t.Context(), "tcp", "127.0.0.1:0"); err == nil {
		t.Error("Dial of a port that nobody listens on succeeds")
	}
}
