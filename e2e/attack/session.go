package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// session is an HTTP/2 connection with hand-made frames. It answers SETTINGS and PING, and obeys the server's flow
// control. Its methods may be called concurrently.
type session struct {
	t      *target
	conn   net.Conn
	framer *http2.Framer

	// write guards the writing of frames, and the headers' encoder.
	write   sync.Mutex
	headers bytes.Buffer
	encoder *hpack.Encoder
	next    uint32

	mu      sync.Mutex
	changed *sync.Cond // when a window, a stream or err changes
	window  int64
	initial int64 // window of a new stream
	frame   int   // the longest that the server accepts
	streams map[uint32]*stream
	err     error // of the connection's end
}

// stream is a request of a session.
type stream struct {
	id     uint32
	window int64 // guarded by the session's mu
	// code receives the status of the response. ended is closed with the stream.
	code  chan int
	ended chan struct{}
}

// counted waits for the answer's status, the end of the stream or of the context, and counts the first two.
func (s *stream) counted(ctx context.Context, r *report) {
	select {
	case code := <-s.code:
		r.answer(code)
	case <-s.ended:
		r.answer(0)
	case <-ctx.Done():
	}
}

// session connects to the server with settings. The connection ends with the context.
func (t *target) session(ctx context.Context, c credential, settings ...http2.Setting) (*session, error) {
	conn, err := t.dial(ctx, c, "h2")
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &session{
		t:       t,
		conn:    conn,
		framer:  http2.NewFramer(conn, conn),
		next:    1,
		window:  65535,
		initial: 65535,
		frame:   16384,
		streams: map[uint32]*stream{},
	}
	s.changed = sync.NewCond(&s.mu)
	s.encoder = hpack.NewEncoder(&s.headers)
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.framer.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := s.framer.WriteSettings(settings...); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	go s.read() // ends with the connection, which ends with ctx
	return s, nil
}

func (s *session) close() { s.conn.Close() }

// read handles the frames of the server.
func (s *session) read() {
	for {
		frame, err := s.framer.ReadFrame()
		var broken http2.StreamError
		if errors.As(err, &broken) {
			continue
		}
		if err != nil {
			s.fail(err)
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				s.settings(f)
				s.send(s.framer.WriteSettingsAck)
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				s.send(func() error { return s.framer.WritePing(true, f.Data) })
			}
		case *http2.WindowUpdateFrame:
			s.mu.Lock()
			if f.StreamID == 0 {
				s.window += int64(f.Increment)
			} else if stream := s.streams[f.StreamID]; stream != nil {
				stream.window += int64(f.Increment)
			}
			s.changed.Broadcast()
			s.mu.Unlock()
		case *http2.MetaHeadersFrame:
			s.answered(f.StreamID, f.PseudoValue("status"), f.StreamEnded())
		case *http2.DataFrame:
			s.answered(f.StreamID, "", f.StreamEnded())
		case *http2.RSTStreamFrame:
			s.answered(f.StreamID, "", true)
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo {
				s.fail(fmt.Errorf("the server says %s: %s", f.ErrCode, f.DebugData()))
				s.close()
				return
			}
		}
	}
}

func (s *session) settings(f *http2.SettingsFrame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		for _, stream := range s.streams {
			stream.window += int64(v) - s.initial
		}
		s.initial = int64(v)
	}
	if v, ok := f.Value(http2.SettingMaxFrameSize); ok {
		s.frame = int(v)
	}
	s.changed.Broadcast()
}

// fail ends all streams.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	for id, stream := range s.streams {
		close(stream.ended)
		delete(s.streams, id)
	}
	s.changed.Broadcast()
}

func (s *session) answered(id uint32, status string, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream := s.streams[id]
	if stream == nil {
		return
	}
	if code, err := strconv.Atoi(status); err == nil && code >= 200 {
		select {
		case stream.code <- code:
		default:
		}
	}
	if ended {
		close(stream.ended)
		delete(s.streams, id)
		s.changed.Broadcast()
	}
}

// writePatience is the time that a write to the connection may take: a server that has stopped reading must not delay
// an attack.
const writePatience = 5 * time.Second

// send writes frames.
func (s *session) send(frames func() error) error {
	s.write.Lock()
	defer s.write.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	return frames()
}

type header struct{ name, value string }

// block encodes the headers of a request. It needs write.
func (s *session) block(c credential, method, path string, more ...header) []byte {
	s.headers.Reset()
	all := []header{{":method", method}, {":scheme", "https"}, {":authority", s.t.url.Host}, {":path", path}, {"accept", "application/json"}}
	if c.token != "" {
		all = append(all, header{"authorization", "Bearer " + c.token})
	}
	for _, h := range append(all, more...) {
		// A buffer accepts every write.
		_ = s.encoder.WriteField(hpack.HeaderField{Name: h.name, Value: h.value})
	}
	return s.headers.Bytes()
}

// open begins a request, without a body if end is set.
func (s *session) open(c credential, method, path string, end bool, more ...header) (*stream, error) {
	one := &stream{code: make(chan int, 1), ended: make(chan struct{})}
	err := s.send(func() error {
		s.mu.Lock()
		one.id, one.window = s.next, s.initial
		s.next += 2
		err := s.err
		if err == nil {
			s.streams[one.id] = one
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		return s.framer.WriteHeaders(
			http2.HeadersFrameParam{StreamID: one.id, BlockFragment: s.block(c, method, path, more...), EndHeaders: true, EndStream: end},
		)
	})
	return one, err
}

// body sends the whole body of a request, as fast as the server accepts it.
func (s *session) body(of *stream, content []byte) error {
	for {
		s.mu.Lock()
		for s.err == nil && s.streams[of.id] == of && min(s.window, of.window) <= 0 {
			s.changed.Wait()
		}
		if s.err != nil || s.streams[of.id] != of {
			err := s.err
			s.mu.Unlock()
			return err // a response may come before the end of the body
		}
		n := int(min(s.window, of.window, int64(s.frame), int64(len(content))))
		s.window -= int64(n)
		of.window -= int64(n)
		s.mu.Unlock()
		part := content[:n]
		content = content[n:]
		if err := s.send(func() error { return s.framer.WriteData(of.id, len(content) == 0, part) }); err != nil || len(content) == 0 {
			return err
		}
	}
}

// reset ends a request.
func (s *session) reset(of *stream) error {
	s.answered(of.id, "", true)
	return s.send(func() error { return s.framer.WriteRSTStream(of.id, http2.ErrCodeCancel) })
}
