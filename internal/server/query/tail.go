package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/annexapi/annex/internal/base/apierr"
)

const (
	eventStream = "text/event-stream"
	// writeTime bounds the time that a client takes to read an event. A client that does not read ends its own tail
	// and does not delay others.
	writeTime = 30 * time.Second
	// longestEvent is the maximum size of a buffered incomplete event.
	longestEvent = 64 << 20
	// longestMessage is the maximum size of a client's message over a WebSocket; clients need not send any.
	longestMessage = 512
)

// tail answers with the objects that a query selects, followed by their changes.
func (a *API) tail(w http.ResponseWriter, r *http.Request, asked *parsedRequest, next http.Handler) error {
	if !websocket.IsWebSocketUpgrade(r) && !accepts(r, eventStream) {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "a watch is " + eventStream + ", or a WebSocket if the request upgrades to one",
		}}
	}
	query := url.Values{"watch": {"true"}, "allowWatchBookmarks": {"true"}}
	if asked.version != "" {
		query.Set("resourceVersion", asked.version)
	} else {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	for name, values := range asked.selectors {
		query[name] = values
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	t := &tail{asked: asked, end: end, header: http.Header{}, initial: asked.version == "", union: unionOf(asked.request.Namespaces)}
	t.open = func() (sender, error) { return openEvents(w), nil }
	if websocket.IsWebSocketUpgrade(r) {
		t.open = func() (sender, error) { return openSocket(w, r, end) }
	}
	if asked.union != "" && asked.union != t.union {
		return t.refuse(errUnion)
	}
	var beating sync.WaitGroup
	beating.Go(func() { t.beat(ctx, a.config.Heartbeat) })
	next.ServeHTTP(t, listOf(r.WithContext(ctx), asked, query))
	withdrawn := context.Cause(ctx)
	end()
	beating.Wait()
	return t.close(withdrawn)
}

// accepts reports whether a client accepts a media type. Without an Accept header it accepts all.
func accepts(r *http.Request, media string) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accept == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		name, _, _ := strings.Cut(part, ";")
		if name = strings.TrimSpace(name); name == media || name == "*/*" || name == "text/*" {
			return true
		}
	}
	return false
}

// sender writes events to a client.
type sender interface {
	// event sends an event. A tail cannot continue at an event with an empty version.
	event(kind, version string, data []byte) error
	// beat sends a heartbeat.
	beat() error
	close()
}

// tail is the response writer of a watch, which writes each event as a line.
type tail struct {
	asked  *parsedRequest
	end    context.CancelFunc
	open   func() (sender, error)
	header http.Header
	line   []byte // the incomplete next line

	mu      sync.Mutex
	code    int
	to      sender // nil until the watch begins
	failed  error
	initial bool // the initial objects are not complete
	union   string
	quiet   bool // nothing was sent since the last heartbeat
}

// Header implements http.ResponseWriter.
func (t *tail) Header() http.Header { return t.header }

// WriteHeader implements http.ResponseWriter.
func (t *tail) WriteHeader(code int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.code != 0 {
		return
	}
	if t.code = code; code == http.StatusOK {
		t.begin()
	}
}

// begin opens the sender to the client. The caller holds mu.
func (t *tail) begin() {
	if t.to, t.failed = t.open(); t.failed != nil {
		t.end()
	}
}

// Write implements http.ResponseWriter.
func (t *tail) Write(b []byte) (int, error) {
	t.WriteHeader(http.StatusOK)
	t.line = append(t.line, b...)
	if t.code != http.StatusOK {
		return len(b), nil // an error, which is buffered until it is complete
	}
	for {
		line, rest, whole := bytes.Cut(t.line, []byte("\n"))
		if !whole {
			break
		}
		if err := t.forward(line); err != nil {
			t.end()
			return 0, err
		}
		t.line = rest
	}
	if len(t.line) > longestEvent {
		return 0, errors.New("an event that is too long")
	}
	t.line = bytes.Clone(t.line)
	return len(b), nil
}

// Flush implements http.Flusher: every event is sent at once.
func (t *tail) Flush() { t.WriteHeader(http.StatusOK) }

// CloseNotify makes upstream's handlers preserve Flush when they wrap the writer. The channel is never used, because
// the context ends.
func (t *tail) CloseNotify() <-chan bool { return nil }

// event is an event of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// eventMetadata contains the fields of an object that a tail needs.
type eventMetadata struct {
	Code     int32 `json:"code"`
	Metadata struct {
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// The event is forwarded to the client, with the requested parts of its object. An error event is the last one.
func (t *tail) forward(line []byte) error {
	var e event
	var object eventMetadata
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("read an event of a watch: %w", err)
	}
	if e.Type == string(watch.Error) {
		return t.fail(e.Object)
	}
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return fmt.Errorf("read an object of a watch: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Type == string(watch.Bookmark) && object.Metadata.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		t.initial = false
	}
	// Initial objects are not sorted by resource version: a tail that continued at one of them would miss others.
	version := object.Metadata.ResourceVersion
	switch {
	case t.initial:
		version = ""
	case t.union != "" && version != "":
		version += unionMark + t.union
	}
	if e.Type != string(watch.Bookmark) {
		var err error
		if e.Object, err = t.asked.item(e.Object); err != nil {
			return err
		}
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return t.send(e.Type, version, data)
}

// send sends an event. The caller holds mu.
func (t *tail) send(kind, version string, data []byte) error {
	if t.failed != nil {
		return t.failed
	}
	t.quiet = false
	t.failed = t.to.event(kind, version, data)
	return t.failed
}

// unionMark separates the version from the identity of the union in the ID of an event.
const unionMark = "."

// noVersion makes a returning client begin anew.
const noVersion = "-"

// fail sends an error as the last event. After an expired version, its ID makes the client begin anew.
func (t *tail) fail(status []byte) error {
	data, err := json.Marshal(event{string(watch.Error), status})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var object eventMetadata
	version := ""
	if json.Unmarshal(status, &object) == nil && object.Code == http.StatusGone {
		version = noVersion
	}
	return t.send(string(watch.Error), version, data)
}

// beat sends heartbeats until the context ends.
func (t *tail) beat(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		t.mu.Lock()
		if t.to != nil && t.failed == nil && t.quiet {
			if t.failed = t.to.beat(); t.failed != nil {
				t.end()
			}
		}
		t.quiet = true
		t.mu.Unlock()
	}
}

// close ends the tail. If cause, the cause of the context, is an API status, the caller may not continue, and close
// sends it as an event. The returned error has not been sent to the client: the watch did not begin.
func (t *tail) close(cause error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to != nil {
		if _, withdrawn := apierr.Status(cause); withdrawn && t.failed == nil {
			t.failed = t.say(cause)
		}
		t.to.close()
		return nil
	}
	if t.code == 0 || t.code == http.StatusOK {
		return t.failed
	}
	err := ErrorOf(t.code, t.line)
	if statusOf(err).Code != http.StatusGone {
		return err
	}
	// Clients of event streams do not reconnect after an ordinary error response.
	return t.refused(err)
}

// refuse begins a tail and sends an error as its only event.
func (t *tail) refuse(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused(err)
}

// refused is refuse for a caller that holds mu.
func (t *tail) refused(err error) error {
	if t.begin(); t.failed != nil {
		return t.failed
	}
	defer t.to.close()
	t.failed = t.say(err)
	return nil
}

// The caller holds mu, and the tail has begun.
func (t *tail) say(err error) error {
	status := statusOf(err)
	version := ""
	if status.Code == http.StatusGone {
		version = noVersion
	}
	data, err := json.Marshal(struct {
		Type   string         `json:"type"`
		Object *metav1.Status `json:"object"`
	}{string(watch.Error), status})
	if err != nil {
		return err
	}
	return t.to.event(string(watch.Error), version, data)
}

// events sends Server-Sent Events.
type events struct {
	http.ResponseWriter
	control *http.ResponseController
}

func openEvents(w http.ResponseWriter) sender {
	e := events{w, http.NewResponseController(w)}
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	_ = e.control.Flush() // if it fails, so does the first event
	return e
}

func (e events) event(kind, version string, data []byte) error {
	var b bytes.Buffer
	switch version {
	case "":
	case noVersion:
		b.WriteString("id\n")
	default:
		b.WriteString("id: " + version + "\n")
	}
	b.WriteString("event: " + kind + "\ndata: ")
	b.Write(data)
	b.WriteString("\n\n")
	return e.write(b.Bytes())
}

func (e events) beat() error { return e.write([]byte(":\n\n")) }

func (e events) write(b []byte) error {
	if err := e.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.Write(b); err != nil {
		return err
	}
	if err := e.control.Flush(); err != nil {
		return err
	}
	// Over HTTP/2, an expired deadline ends the stream even while nothing is written.
	if err := e.control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

func (e events) close() {}

// socket is a WebSocket with JSON text messages.
type socket struct {
	*websocket.Conn
	reading sync.WaitGroup
}

func openSocket(w http.ResponseWriter, r *http.Request, end context.CancelFunc) (sender, error) {
	upgrader := websocket.Upgrader{
		CheckOrigin: func(*http.Request) bool { return true }, // the server's handlers check it
		Error:       func(http.ResponseWriter, *http.Request, int, error) {},
	}
	if offered := websocket.Subprotocols(r); len(offered) > 0 {
		upgrader.Subprotocols = offered[:1]
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	var mistake websocket.HandshakeError
	if errors.As(err, &mistake) {
		return nil, apierrors.NewBadRequest("unable to upgrade: " + strings.TrimPrefix(mistake.Error(), "websocket: "))
	}
	if err != nil {
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	conn.SetReadLimit(longestMessage)
	s := &socket{Conn: conn}
	s.reading.Go(func() {
		defer end()
		for {
			if _, _, err := conn.NextReader(); err != nil {
				return
			}
		}
	})
	return s, nil
}

func (s *socket) event(_, _ string, data []byte) error {
	return s.write(websocket.TextMessage, data)
}

func (s *socket) beat() error { return s.write(websocket.PingMessage, nil) }

func (s *socket) write(kind int, data []byte) error {
	if err := s.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	return s.WriteMessage(kind, data)
}

func (s *socket) close() {
	_ = s.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_ = s.Conn.Close() // the tail has ended
	s.reading.Wait()
}
