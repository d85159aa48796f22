package streams

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	clientremotecommand "k8s.io/client-go/tools/remotecommand"
)

// The protocols of commands over WebSockets. Messages begin with the number of a channel; messages of the base64
// protocols are text.
const (
	v4Base64  = "v4.base64.channel.k8s.io"
	preV4     = "channel.k8s.io"
	preBase64 = "base64.channel.k8s.io"
)

var webSocketProtocols = []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name, v4Base64, preV4, preBase64, ""}

// upgrade upgrades a request to a WebSocket with a negotiated subprotocol.
func upgrade(w http.ResponseWriter, r *http.Request, protocol string) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, // the server's handlers check it
		Error:       func(http.ResponseWriter, *http.Request, int, error) {},
	}
	if protocol != "" {
		upgrader.Subprotocols = []string{protocol}
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	var mistake websocket.HandshakeError
	if errors.As(err, &mistake) {
		return nil, &refusal{err: apierrors.NewBadRequest("unable to upgrade: " + strings.TrimPrefix(mistake.Error(), "websocket: "))}
	}
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	return conn, nil
}

// webSocket is a session over a WebSocket.
type webSocket struct {
	*websocket.Conn
	session   *session
	base64    bool
	halfClose bool // the client signals the end of a stream
	status    bool // the end is sent as a Status, not as text

	writing  sync.Mutex
	received chan struct{} // closed when reading has ended

	stdin  *io.PipeWriter
	resize *sizes
}

func openWebSocket(s *session, w http.ResponseWriter, r *http.Request, wanted RequestedStreams) (*commandStreams, error) {
	protocol, err := negotiate(websocket.Subprotocols(r), webSocketProtocols)
	if err != nil {
		return nil, err
	}
	conn, err := upgrade(w, r, protocol)
	if err != nil {
		return nil, err
	}
	ws := &webSocket{
		Conn:      conn,
		session:   s,
		base64:    protocol == v4Base64 || protocol == preBase64,
		halfClose: protocol == remotecommand.StreamProtocolV5Name,
		status:    protocol == remotecommand.StreamProtocolV5Name || protocol == remotecommand.StreamProtocolV4Name || protocol == v4Base64,
		received:  make(chan struct{}),
	}
	o := &commandStreams{command: Command{Stdin: empty{}, Stdout: io.Discard, Stderr: io.Discard, Resize: none()}, finish: ws.finish}
	first := remotecommand.StreamErr
	if wanted.Stdin {
		var stdin *io.PipeReader
		stdin, ws.stdin = io.Pipe()
		o.command.Stdin = stdin
		context.AfterFunc(s.ctx, func() { ws.stdin.CloseWithError(context.Cause(s.ctx)) })
	}
	if wanted.Stderr {
		o.command.Stderr, first = ws.channel(remotecommand.StreamStdErr), remotecommand.StreamStdErr
	}
	if wanted.Stdout {
		o.command.Stdout, first = ws.channel(remotecommand.StreamStdOut), remotecommand.StreamStdOut
	}
	if wanted.TTY {
		ws.resize = newSizes()
		o.command.Resize = ws.resize.newest
	}
	alive := func(string) error { return conn.SetReadDeadline(time.Now().Add(patience)) }
	conn.SetPongHandler(alive)
	answerPing := conn.PingHandler()
	conn.SetPingHandler(func(data string) error {
		if err := alive(""); err != nil {
			return err
		}
		return answerPing(data)
	})
	s.begin(func() {
		// A ping that cannot be sent is queued behind data that the client does not read.
		_ = conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(looking))
	})
	s.watcher.Go(ws.receive)
	// An empty message signals to clients that the connection is established.
	if _, err := ws.send(first, nil); err != nil {
		return nil, fmt.Errorf("begin the session: %w", err)
	}
	return o, nil
}

// channel returns a writer of messages for a stream.
func (ws *webSocket) channel(number int) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		if len(p) == 0 {
			return 0, nil
		}
		ws.session.use()
		return ws.send(number, p)
	})
}

func (ws *webSocket) send(number int, p []byte) (int, error) {
	ws.writing.Lock()
	defer ws.writing.Unlock()
	kind, first := websocket.BinaryMessage, byte(number)
	if ws.base64 {
		kind, first = websocket.TextMessage, '0'+byte(number)
	}
	w, err := ws.NextWriter(kind)
	if err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	_, err = w.Write([]byte{first})
	if err == nil && ws.base64 {
		encoder := base64.NewEncoder(base64.StdEncoding, w)
		_, err = encoder.Write(p)
		err = errors.Join(err, encoder.Close())
	} else if err == nil {
		_, err = w.Write(p)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	return len(p), nil
}

// receive passes the client's messages to their streams until the client goes. While stdin is not read, receive
// waits, and so does the client.
func (ws *webSocket) receive() {
	defer ws.session.left()
	defer close(ws.received)
	if ws.resize != nil {
		defer close(ws.resize.newest)
	}
	buffer := make([]byte, 8<<10)
	for {
		if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return
		}
		_, message, err := ws.NextReader()
		if err != nil {
			return
		}
		if err := ws.dispatch(message, buffer); err != nil {
			return
		}
	}
}

// dispatch passes on one message. A message for no stream is discarded.
func (ws *webSocket) dispatch(message io.Reader, buffer []byte) error {
	if _, err := io.ReadFull(message, buffer[:1]); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	number := int(buffer[0])
	if ws.base64 {
		number -= '0'
		message = base64.NewDecoder(base64.StdEncoding, message)
	}
	switch {
	case ws.halfClose && number == remotecommand.StreamClose:
		if _, err := io.ReadFull(message, buffer[:1]); err == nil && int(buffer[0]) == remotecommand.StreamStdIn && ws.stdin != nil {
			_ = ws.stdin.Close() // never fails
		}
		return nil
	case number == remotecommand.StreamStdIn && ws.stdin != nil:
		return ws.feed(message, buffer)
	case number == remotecommand.StreamResize && ws.resize != nil:
		var size clientremotecommand.TerminalSize
		if err := json.NewDecoder(io.LimitReader(message, int64(len(buffer)))).Decode(&size); err == nil {
			ws.resize.set(size)
		}
	}
	return nil
}

// feed writes a message to stdin. When stdin is no longer read, the message is discarded.
func (ws *webSocket) feed(message io.Reader, buffer []byte) error {
	for {
		n, err := message.Read(buffer)
		if n > 0 {
			ws.session.use()
			_, _ = ws.stdin.Write(buffer[:n]) // fails when the session is over
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
	}
}

func (ws *webSocket) finish(status metav1.Status) {
	ws.session.cancel(errOver)
	ws.writing.Lock()
	_ = ws.SetWriteDeadline(time.Now().Add(sending)) // never fails
	ws.writing.Unlock()
	text := []byte(status.Message)
	if ws.status {
		text, _ = json.Marshal(status) // a Status can be encoded
	}
	if len(text) > 0 {
		if _, err := ws.send(remotecommand.StreamErr, text); err != nil {
			return
		}
	}
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if err := ws.WriteControl(websocket.CloseMessage, bye, time.Now().Add(linger)); err != nil {
		return
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-ws.received:
	case <-timer.C:
	}
}
