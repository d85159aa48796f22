// Package dialed keeps track of the connections that clients of a test leave open. Closing them spares a server the wait
// until they are idle.
package dialed

import (
	"context"
	"net"
	"sync"
)

// Connections are the connections that Dial has made. The zero value has none. Its methods may be called concurrently.
type Connections struct {
	mu    sync.Mutex
	conns []net.Conn
}

// Dial connects to an address. It is for rest.Config.
func (c *Connections) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return conn, nil
}

// Close closes all connections.
func (c *Connections) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // its client may have closed it
	}
	c.conns = nil
}
