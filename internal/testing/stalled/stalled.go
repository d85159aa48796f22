// Package stalled is an HTTP/2 client, for tests, that sends requests and reads no responses: it gives the server no
// window.
package stalled

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Client is a connection. It is for one goroutine.
type Client struct {
	conn   *tls.Conn
	framer *http2.Framer
	next   uint32
}

// Dial connects to an address. The configuration need not name a protocol.
func Dial(address string, config *tls.Config) (*Client, error) {
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c := &Client{conn, http2.NewFramer(conn, conn), 1}
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("begin HTTP/2 with %s: %w", address, err)
	}
	return c, nil
}

// Send sends a request with headers, pairs of a name and a value, and a body, which must be shorter than a frame; nil
// means no body. With more set, the body does not end the request.
func (c *Client) Send(method, path string, body []byte, more bool, headers ...string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{":method", method, ":scheme", "https", ":authority", "localhost", ":path", path}, headers...)
	if body != nil && !more {
		fields = append(fields, "content-length", strconv.Itoa(len(body)))
	}
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			return fmt.Errorf("encode header %s: %w", fields[i], err)
		}
	}
	stream := c.next
	c.next += 2
	if err := c.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: body == nil},
	); err != nil {
		return fmt.Errorf("send headers: %w", err)
	}
	if body == nil {
		return nil
	}
	if err := c.framer.WriteData(stream, !more, body); err != nil {
		return fmt.Errorf("send the body: %w", err)
	}
	return nil
}

// Close closes the connection, and with it all requests.
func (c *Client) Close() error { return c.conn.Close() }
