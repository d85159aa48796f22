package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// window is the flow control window of responses: more than is ever in flight.
const window = 1 << 30

// patience bounds every wait for a server.
const patience = time.Minute

// conn is an HTTP/2 connection. It implements just enough of the protocol for requests to an API server, and so takes
// little of the machine that the servers are measured on. It is for one goroutine.
type conn struct {
	net    net.Conn
	writer *bufio.Writer
	framer *http2.Framer
	header bytes.Buffer
	hpack  *hpack.Encoder
	host   string

	accept  string // media types, if it is not JSON
	discard bool   // responses are not kept, apart from their beginning

	next     uint32 // stream
	consumed uint32 // bytes of responses whose receipt the server does not know yet
	body     []byte // of the last response
}

func dial(address string, config *tls.Config) (*conn, error) {
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	dialer := &net.Dialer{Timeout: patience}
	connection, err := tls.DialWithDialer(dialer, "tcp", address, config)
	if err != nil {
		return nil, err
	}
	c := &conn{net: connection, writer: bufio.NewWriter(connection), host: address, next: 1}
	if got := connection.ConnectionState().NegotiatedProtocol; got != http2.NextProtoTLS {
		return nil, errors.Join(fmt.Errorf("%s speaks %q, not HTTP/2", address, got), connection.Close())
	}
	c.framer = http2.NewFramer(c.writer, bufio.NewReaderSize(connection, 64<<10))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.SetReuseFrames()
	c.hpack = hpack.NewEncoder(&c.header)
	_, err = c.writer.WriteString(http2.ClientPreface)
	err = errors.Join(
		err,
		c.framer.WriteSettings(
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: window},
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		),
		c.framer.WriteWindowUpdate(0, window),
		c.writer.Flush(),
	)
	if err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return c, nil
}

func (c *conn) close() { _ = c.net.Close() }

// send begins a request and returns its stream.
func (c *conn) send(method, path, contentType string, body []byte) (uint32, error) {
	c.header.Reset()
	field := func(name, value string) { _ = c.hpack.WriteField(hpack.HeaderField{Name: name, Value: value}) }
	field(":method", method)
	field(":scheme", "https")
	field(":authority", c.host)
	field(":path", path)
	field("accept", cmp.Or(c.accept, "application/json"))
	field("user-agent", "annex-bench-peers")
	if body != nil {
		field("content-type", contentType)
		field("content-length", strconv.Itoa(len(body)))
	}
	stream := c.next
	c.next += 2
	err := c.framer.WriteHeaders(
		http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.header.Bytes(), EndHeaders: true, EndStream: body == nil},
	)
	if err == nil && body != nil {
		err = c.framer.WriteData(stream, true, body)
	}
	return stream, errors.Join(err, c.writer.Flush())
}

// part is a received part of a response.
type part struct {
	stream uint32
	status int    // if the response begins
	data   []byte // valid until the next part is read
	end    bool
}

// receive returns the next part of any response.
func (c *conn) receive() (part, error) {
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return part{}, err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			p := part{stream: f.StreamID, end: f.StreamEnded()}
			if status := f.PseudoValue("status"); status != "" {
				if p.status, err = strconv.Atoi(status); err != nil {
					return part{}, err
				}
			}
			return p, nil
		case *http2.DataFrame:
			if c.consumed += f.Length; c.consumed >= window/2 {
				if err := errors.Join(c.framer.WriteWindowUpdate(0, c.consumed), c.writer.Flush()); err != nil {
					return part{}, err
				}
				c.consumed = 0
			}
			return part{stream: f.StreamID, data: f.Data(), end: f.StreamEnded()}, nil
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = errors.Join(c.framer.WriteSettingsAck(), c.writer.Flush())
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = errors.Join(c.framer.WritePing(true, f.Data), c.writer.Flush())
			}
		case *http2.RSTStreamFrame:
			return part{stream: f.StreamID, end: true}, nil
		case *http2.GoAwayFrame:
			return part{}, fmt.Errorf("the server closes the connection: %s %s", f.ErrCode, f.DebugData())
		}
		if err != nil {
			return part{}, err
		}
	}
}

// do makes a request and returns its response, which is valid until the next one. A response outside of the class 2xx
// is an error.
func (c *conn) do(method, path, contentType string, body []byte) ([]byte, error) {
	if err := c.net.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	stream, err := c.send(method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	c.body = c.body[:0]
	status := 0
	for {
		p, err := c.receive()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		if p.stream != stream {
			continue
		}
		if p.status != 0 {
			status = p.status
		}
		if !c.discard || len(c.body) < 1<<10 {
			c.body = append(c.body, p.data...)
		}
		if p.end {
			break
		}
	}
	if status < 200 || status > 299 {
		return nil, fmt.Errorf("%s %s: %d %s", method, path, status, c.body)
	}
	return c.body, nil
}

func (c *conn) get(path string) ([]byte, error) { return c.do(http.MethodGet, path, "", nil) }

// watches are many watches on one connection. Each takes part in the order of its stream's events; a watch that the
// server ends is resumed where it ended.
type watches struct {
	conn    *conn
	path    string
	watches map[uint32]*watchState
	on      func(watch int, event []byte, at time.Time)
	resumed int
}

type watchState struct {
	number  int
	partial []byte
	version string // of the last event
}

// openWatches starts watches from a resource version on and returns when the server has answered all of them. Events
// go to on, which must not keep them.
func openWatches(
	address string,
	config *tls.Config,
	path, version string,
	numbers []int,
	on func(int, []byte, time.Time),
) (*watches, error) {
	c, err := dial(address, config)
	if err != nil {
		return nil, err
	}
	w := &watches{conn: c, path: path, watches: map[uint32]*watchState{}, on: on}
	if err := c.net.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	for _, number := range numbers {
		if err := w.open(&watchState{number: number, version: version}); err != nil {
			c.close()
			return nil, err
		}
	}
	for answered := 0; answered < len(numbers); {
		p, err := c.receive()
		if err != nil {
			c.close()
			return nil, err
		}
		if p.status != 0 {
			answered++
		}
		if err := w.take(p); err != nil {
			c.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *watches) open(s *watchState) error {
	stream, err := w.conn.send(http.MethodGet, w.path+"?watch=1&resourceVersion="+s.version, "", nil)
	s.partial = s.partial[:0]
	w.watches[stream] = s
	return err
}

// run delivers events until the connection is closed, which is no error.
func (w *watches) run() error {
	for {
		p, err := w.conn.receive()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.take(p); err != nil {
			return err
		}
	}
}

func (w *watches) take(p part) error {
	s := w.watches[p.stream]
	if s == nil {
		return nil
	}
	if p.status != 0 && p.status != http.StatusOK {
		return fmt.Errorf("watch %s: status %d", w.path, p.status)
	}
	now := time.Now()
	rest := p.data
	if len(s.partial) > 0 && len(rest) > 0 {
		s.partial = append(s.partial, rest...)
		rest = s.partial
	}
	for {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			break
		}
		event := rest[:end]
		rest = rest[end+1:]
		if bytes.HasPrefix(event, []byte(`{"type":"ERROR"`)) {
			return fmt.Errorf("watch %s: %s", w.path, event)
		}
		s.version = string(text(event, `"resourceVersion":"`))
		w.on(s.number, event, now)
	}
	if len(p.data) > 0 {
		s.partial = append(s.partial[:0], slices.Clone(rest)...)
	}
	if p.end {
		delete(w.watches, p.stream)
		w.resumed++
		return w.open(s)
	}
	return nil
}

// text returns the text after a mark, up to the next quotation mark.
func text(data []byte, mark string) []byte {
	_, after, _ := bytes.Cut(data, []byte(mark))
	value, _, _ := bytes.Cut(after, []byte{'"'})
	return value
}
