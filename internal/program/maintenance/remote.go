package maintenance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Prefix is the path prefix of the maintenance handlers.
const Prefix = "/storage/"

// maxRequests bounds the concurrent requests, each of which may read a whole storage. Backups, which last as long
// as their clients read, have the same number of slots of their own.
const maxRequests = 4

// sendTimeout bounds how long a client may take to receive one write. A backup as a whole has no deadline.
const sendTimeout = time.Minute

// Handlers returns the handlers for Remote, by path. They do not authorize requests.
func Handlers(local *Local) map[string]http.Handler {
	backups, others := make(chan struct{}, maxRequests), make(chan struct{}, maxRequests)
	handle := func(method string, places chan struct{}, serve func(*Local, http.ResponseWriter, *http.Request) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != method {
				w.Header().Set("Allow", method)
				http.Error(w, "use "+method, http.StatusMethodNotAllowed)
				return
			}
			only, err := local.Only(r.URL.Query().Get("storage"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
				return
			}
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
			default:
				w.Header().Set("Retry-After", "1")
				http.Error(w, "another client maintains the storage: try again later", http.StatusTooManyRequests)
				return
			}
			sending := &patient{ResponseWriter: w}
			if err := serve(only, sending, r); err != nil {
				sending.fail(r.Context(), err)
			}
			sending.limit() // the rest is flushed after the handler has returned
		})
	}
	return map[string]http.Handler{
		Prefix + "backup":  handle(http.MethodGet, backups, serveBackup),
		Prefix + "stats":   handle(http.MethodGet, others, serveStats),
		Prefix + "verify":  handle(http.MethodGet, others, serveVerify),
		Prefix + "compact": handle(http.MethodPost, others, serveCompact),
		Prefix + "rewrite": handle(http.MethodPost, others, serveRewrite),
	}
}

func serveBackup(l *Local, w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/octet-stream")
	return l.Backup(r.Context(), w)
}

func serveStats(l *Local, w http.ResponseWriter, r *http.Request) error {
	stats, err := l.Stats(r.Context())
	if err != nil {
		return err
	}
	return answer(w, stats)
}

func serveCompact(l *Local, w http.ResponseWriter, r *http.Request) error {
	revision := uint64(0)
	if text := r.URL.Query().Get("revision"); text != "" {
		var err error
		if revision, err = strconv.ParseUint(text, 10, 64); err != nil {
			http.Error(w, fmt.Sprintf("revision %q is not a number", text), http.StatusBadRequest)
			return nil
		}
	}
	done, err := l.Compact(r.Context(), revision)
	if errors.Is(err, ErrAhead) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil
	}
	if err != nil {
		return err
	}
	return answer(w, done)
}

// verifyLine is a line of the response to a verification. Only the last line has Verified.
type verifyLine struct {
	Finding  *Finding  `json:"finding,omitempty"`
	Verified *Verified `json:"verified,omitempty"`
}

func serveVerify(l *Local, w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	verified, err := l.Verify(r.Context(), func(f Finding) {
		_ = encoder.Encode(verifyLine{Finding: &f}) // a failure shows at the next write
	})
	if err != nil {
		return err
	}
	return encoder.Encode(verifyLine{Verified: &verified})
}

func answer(w http.ResponseWriter, content any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(content)
}

// patient is a ResponseWriter for long responses. It sets a write deadline only while it writes: HTTP/2 would end
// the response at a deadline even while there is nothing to send.
type patient struct {
	http.ResponseWriter
	began bool
}

func (p *patient) Write(data []byte) (int, error) {
	p.began = true
	defer p.limit()()
	return p.ResponseWriter.Write(data)
}

// FlushError implements the flushing interface of http.ResponseController.
func (p *patient) FlushError() error {
	p.began = true
	defer p.limit()()
	return http.NewResponseController(p.ResponseWriter).Flush()
}

// limit sets a write deadline of sendTimeout until lift is called, so that a client that stops reading does not
// block the storage forever.
func (p *patient) limit() (lift func()) {
	// Best effort: a ResponseWriter other than net/http's may not support deadlines.
	connection := http.NewResponseController(p.ResponseWriter)
	_ = connection.SetWriteDeadline(time.Now().Add(sendTimeout))
	return func() { _ = connection.SetWriteDeadline(time.Time{}) }
}

// fail responds with an error. If the response has begun already, it aborts it.
func (p *patient) fail(ctx context.Context, err error) {
	if !p.began {
		http.Error(p.ResponseWriter, err.Error(), http.StatusInternalServerError)
		return
	}
	klog.FromContext(ctx).Error(err, "Maintenance of the storage was interrupted")
	_ = p.FlushError() // the data sent so far may name the reason
	panic(http.ErrAbortHandler)
}

// Remote asks a running server over HTTP.
type Remote struct {
	client  *http.Client
	base    *url.URL
	storage string
}

var _ Tools = (*Remote)(nil)

// Dial returns tools that work through a running server on one storage, or on all if the name is empty. It does not
// connect yet.
func Dial(config *rest.Config, storage string) (*Remote, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return &Remote{client: client, base: base, storage: storage}, nil
}

// Address returns the server's host and port.
func (r *Remote) Address() string { return r.base.Host }

// Reach returns the reason if a connection to the server cannot be opened.
func (r *Remote) Reach(ctx context.Context) error {
	dialer := net.Dialer{Timeout: reachTimeout}
	address := r.base.Host
	if r.base.Port() == "" {
		address = net.JoinHostPort(r.base.Hostname(), r.base.Scheme)
	}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// reachTimeout bounds the time to connect.
const reachTimeout = 5 * time.Second

// Close implements Tools.
func (r *Remote) Close() error {
	r.client.CloseIdleConnections()
	return nil
}

// Refused is an error response of the server.
type Refused struct {
	Code    int
	Message string
}

func (e *Refused) Error() string {
	switch e.Code {
	case http.StatusUnauthorized:
		return "the server does not accept the kubeconfig's credentials"
	case http.StatusNotFound:
		if strings.HasPrefix(e.Message, "there is no storage") {
			return e.Message
		}
		return "the server has no API for the maintenance of its storage: it may be an older version"
	}
	return e.Message
}

func (r *Remote) do(ctx context.Context, method, verb string, query url.Values) (io.ReadCloser, error) {
	u := r.base.JoinPath(Prefix + verb)
	if query == nil {
		query = url.Values{}
	}
	if r.storage != "" {
		query.Set("storage", r.storage)
	}
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("request to the running server: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("request to the running server: %s: %w", response.Status, err)
	}
	status := metav1.Status{}
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		text = []byte(status.Message)
	}
	return nil, fmt.Errorf("request to the running server: %w", &Refused{response.StatusCode, strings.TrimSpace(string(text))})
}

// Backup implements Tools. A nil error does not mean that the backup is complete, since a server can only break off
// the response: the reader must verify it, as BackupTo does.
func (r *Remote) Backup(ctx context.Context, to io.Writer) error {
	body, err := r.do(ctx, http.MethodGet, "backup", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(to, body); err != nil {
		return fmt.Errorf("the server aborted the request: %w", err)
	}
	return nil
}

// Stats implements Tools.
func (r *Remote) Stats(ctx context.Context) ([]Stats, error) {
	var stats []Stats
	return stats, r.ask(ctx, http.MethodGet, "stats", nil, &stats)
}

// Compact implements Tools.
func (r *Remote) Compact(ctx context.Context, revision uint64) ([]Compacted, error) {
	var done []Compacted
	query := url.Values{}
	if revision != 0 {
		query.Set("revision", strconv.FormatUint(revision, 10))
	}
	err := r.ask(ctx, http.MethodPost, "compact", query, &done)
	if refused := (*Refused)(nil); errors.As(err, &refused) && refused.Code == http.StatusBadRequest {
		err = fmt.Errorf("%w: %w", ErrAhead, err)
	}
	return done, err
}

func (r *Remote) ask(ctx context.Context, method, verb string, query url.Values, into any) error {
	body, err := r.do(ctx, method, verb, query)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	return nil
}

// Verify implements Tools.
func (r *Remote) Verify(ctx context.Context, report func(Finding)) (Verified, error) {
	body, err := r.do(ctx, http.MethodGet, "verify", nil)
	if err != nil {
		return Verified{}, err
	}
	defer body.Close()
	for decoder := json.NewDecoder(bufio.NewReader(body)); ; {
		line := verifyLine{}
		switch err := decoder.Decode(&line); {
		case err != nil:
			return Verified{}, fmt.Errorf("the server aborted the request: %w", err)
		case line.Finding != nil:
			report(*line.Finding)
		case line.Verified != nil:
			return *line.Verified, nil
		}
	}
}
