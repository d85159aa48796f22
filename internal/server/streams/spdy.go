package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// spdyProtocols are the protocols of commands over SPDY. A client that names none speaks the first version.
var spdyProtocols = []string{
	remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV3Name, remotecommand.StreamProtocolV2Name,
	remotecommand.StreamProtocolV1Name, "",
}

func isSPDY(r *http.Request) bool {
	return strings.Contains(strings.ToLower(r.Header.Get(httpstream.HeaderUpgrade)), strings.ToLower(spdy.HeaderSpdy31))
}

// offeredStream is a stream that a client has opened. accepted is closed when the client has been notified of the
// acceptance.
type offeredStream struct {
	httpstream.Stream
	accepted <-chan struct{}
}

// spdySession is a session over SPDY.
type spdySession struct {
	session  *session
	conn     httpstream.Connection
	protocol string
	streams  map[string]httpstream.Stream
}

func openSPDY(s *session, w http.ResponseWriter, r *http.Request, wanted RequestedStreams) (*commandStreams, error) {
	protocol, err := negotiate(listed(r.Header.Values(httpstream.HeaderProtocolVersion)), spdyProtocols)
	if err != nil {
		return nil, err
	}
	if protocol != "" {
		w.Header().Set(httpstream.HeaderProtocolVersion, protocol)
	}
	types := []string{corev1.StreamTypeError}
	for _, t := range []struct {
		name   string
		wanted bool
	}{
		{corev1.StreamTypeStdin, wanted.Stdin},
		{corev1.StreamTypeStdout, wanted.Stdout},
		{corev1.StreamTypeStderr, wanted.Stderr},
		{corev1.StreamTypeResize, wanted.TTY && (protocol == remotecommand.StreamProtocolV4Name ||
			protocol == remotecommand.StreamProtocolV3Name)},
	} {
		if t.wanted {
			types = append(types, t.name)
		}
	}
	incoming := make(chan offeredStream)
	conn := spdy.NewResponseUpgraderWithPings(pingPeriod).
		UpgradeResponse(framedWriter{w}, r, func(stream httpstream.Stream, accepted <-chan struct{}) error {
			if name := stream.Headers().Get(corev1.StreamType); !slices.Contains(types, name) {
				return fmt.Errorf("unexpected stream type %q", name)
			}
			select {
			case incoming <- offeredStream{stream, accepted}:
				return nil
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
		})
	if conn == nil {
		return nil, errors.New("the server could not hijack the connection")
	}
	c := &spdySession{s, conn, protocol, map[string]httpstream.Stream{}}
	s.begin(nil)
	s.watcher.Go(func() {
		<-s.over
		_ = conn.Close() // the underlying connection is closed, too
	})
	if err := c.wait(types, incoming); err != nil {
		return nil, err
	}
	o := &commandStreams{command: Command{Stdin: empty{}, Stdout: io.Discard, Stderr: io.Discard, Resize: none()}, finish: c.finish}
	if stdin := c.streams[corev1.StreamTypeStdin]; stdin != nil {
		o.command.Stdin = spdyReader{stdin, s}
		context.AfterFunc(s.ctx, func() { _ = stdin.Reset() }) // ends its reader
	}
	if wanted.Stdout {
		o.command.Stdout = c.writer(corev1.StreamTypeStdout)
	}
	if wanted.Stderr {
		o.command.Stderr = c.writer(corev1.StreamTypeStderr)
	}
	if resize := c.streams[corev1.StreamTypeResize]; resize != nil {
		sizes := newSizes()
		o.command.Resize = sizes.newest
		s.watcher.Go(func() { sizes.follow(resize) })
	}
	return o, nil
}

// wait returns when the client has opened its streams.
func (c *spdySession) wait(types []string, incoming <-chan offeredStream) error {
	late := time.NewTimer(opening)
	defer late.Stop()
	for len(c.streams) < len(types) {
		select {
		case stream := <-incoming:
			name := stream.Headers().Get(corev1.StreamType)
			if c.streams[name] != nil {
				return fmt.Errorf("the client opened stream %q twice", name)
			}
			c.streams[name] = stream.Stream
			select {
			case <-stream.accepted:
			case <-c.session.ctx.Done():
				return context.Cause(c.session.ctx)
			}
		case <-c.session.ctx.Done():
			return context.Cause(c.session.ctx)
		case <-late.C:
			return fmt.Errorf("the client opened %d of %d streams within %s", len(c.streams), len(types), opening)
		}
	}
	return nil
}

func (c *spdySession) writer(name string) io.Writer {
	stream := c.streams[name]
	return writerFunc(func(p []byte) (int, error) {
		if len(p) == 0 {
			return 0, nil
		}
		c.session.use()
		return stream.Write(p)
	})
}

func (c *spdySession) finish(status metav1.Status) {
	s := c.session
	s.cancel(errOver)
	_ = s.conn.SetWriteDeadline(time.Now().Add(sending)) // if it fails, so do the writes
	text := []byte(status.Message)
	if c.protocol == remotecommand.StreamProtocolV4Name {
		text, _ = json.Marshal(status) // a Status can be encoded
	}
	if len(text) > 0 {
		if _, err := c.streams[corev1.StreamTypeError].Write(text); err != nil {
			return
		}
	}
	for _, name := range []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr, corev1.StreamTypeError} {
		if stream := c.streams[name]; stream != nil {
			_ = stream.Close() // if the connection fails, the client notices
		}
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-c.conn.CloseChan():
	case <-s.gone:
	case <-timer.C:
	}
}

// spdyReader distinguishes the end of a stream from the end of its session.
type spdyReader struct {
	stream  io.Reader
	session *session
}

func (r spdyReader) Read(p []byte) (int, error) {
	n, err := r.stream.Read(p)
	if n > 0 {
		r.session.use()
	}
	if errors.Is(err, io.EOF) && r.session.ctx.Err() != nil {
		err = context.Cause(r.session.ctx)
	}
	return n, err
}
