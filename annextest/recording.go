package annextest

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// Bounds of a recording.
const (
	mostRecords = 10_000
	mostHeld    = 32 << 20 // bytes of all bodies
	mostBody    = 1 << 20  // bytes of a body or of an event; longer ones are not kept
)

// ownRequest is the key in the context of requests that a report sends itself: they are not recorded and meet no fault.
type ownRequest struct{}

// exchange is a request and its answer. The mutex of the report guards it.
type exchange struct {
	target target
	began  time.Time
	took   time.Duration // until the headers of the answer
	who    string
	agent  string
	dryRun bool

	sent, got         []byte
	sentType, gotType string
	tooLong           bool
	code              int // 0 without an answer
	err               string
	fault             string
	frames            *splitter
	events            int
	ending            string // of a watch
	held              int
	forgotten         bool
}

// record is an answer, or an event of a watch.
type record struct {
	exchange *exchange
	at       time.Time
	event    []byte // nil for an answer
}

// begin notes that a request is sent.
func (r *Report) begin(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[*exchange]bool{}
	}
	r.open[x] = true
}

// answered notes the answer to a request, or the error in its place.
func (r *Report) answered(x *exchange, response *http.Response, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	x.took = now.Sub(x.began)
	delete(r.open, x)
	if err != nil {
		x.err = err.Error()
		if injected, ok := errors.AsType[*injectedError](err); ok {
			x.fault, x.err = injected.kind, injected.err.Error()
		}
	} else {
		x.code, x.gotType, x.fault = response.StatusCode, response.Header.Get("Content-Type"), response.Header.Get(faultHeader)
		if x.target.verb == "watch" && x.code == http.StatusOK {
			x.frames, _ = newSplitter(x.gotType)
		}
	}
	r.add(record{exchange: x, at: now}, len(x.sent))
}

// add appends a record, of which some bytes are held.
func (r *Report) add(next record, bytes int) {
	r.records = append(r.records, next)
	r.hold(next, bytes)
}

// hold counts bytes of a record, and forgets the oldest records beyond the bounds.
func (r *Report) hold(of record, bytes int) {
	if of.event == nil {
		of.exchange.held += bytes
	}
	r.held += bytes
	for len(r.records) > mostRecords || r.held > mostHeld && len(r.records) > 1 {
		old := r.records[0]
		if old.event != nil {
			r.held -= len(old.event)
		} else {
			r.held -= old.exchange.held
			old.exchange.forgotten, old.exchange.sent, old.exchange.got = true, nil, nil
		}
		r.records[0] = record{} // for the garbage collector
		r.records = r.records[1:]
		r.forgotten++
	}
}

// read notes bytes of an answer's body, and the error or the end after them.
func (r *Report) read(x *exchange, data []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.frames != nil {
		for _, frame := range x.frames.push(data) {
			x.events++
			if len(frame) <= mostBody {
				r.add(record{exchange: x, at: time.Now(), event: frame}, len(frame))
			}
		}
		if len(x.frames.rest) > mostBody {
			x.frames, x.ending = nil, "its events are too long to be recorded"
		} else if err != nil && x.ending == "" {
			x.ending = "ended"
			if !errors.Is(err, io.EOF) {
				x.ending = "broke: " + err.Error()
			}
		}
		return
	}
	switch {
	case x.forgotten || x.tooLong || x.target.verb == "watch":
	case len(x.got)+len(data) > mostBody:
		r.hold(record{exchange: x}, -len(x.got))
		x.got, x.tooLong = nil, true
	default:
		x.got = append(x.got, data...)
		r.hold(record{exchange: x}, len(data))
	}
}

// recorder is the transport of a client whose requests are recorded.
type recorder struct {
	report      *Report
	prefix, who string
	next        http.RoundTripper
}

// WrappedRoundTripper returns the transport behind the recorder, which dialers of client-go look for.
func (c *recorder) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip implements http.RoundTripper.
func (c *recorder) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Value(ownRequest{}) != nil {
		return c.next.RoundTrip(r)
	}
	x := &exchange{
		target: targetOf(r, c.prefix), began: time.Now(), who: c.who, sentType: r.Header.Get("Content-Type"),
		dryRun: r.URL.Query().Has("dryRun"),
	}
	if x.target.verb == "update" || x.target.verb == "patch" {
		if x.sent = bodyOf(r); len(x.sent) > mostBody {
			x.sent = nil
		}
	}
	if user := r.Header.Get("Impersonate-User"); user != "" {
		x.who = user
	}
	x.agent, _, _ = strings.Cut(r.Header.Get("User-Agent"), " ")
	x.agent, _, _ = strings.Cut(x.agent, "/")
	c.report.begin(x)
	response, err := c.next.RoundTrip(r)
	c.report.answered(x, response, err)
	if err == nil && response.StatusCode != http.StatusSwitchingProtocols && response.Body != nil {
		response.Body = &recordedBody{ReadCloser: response.Body, report: c.report, exchange: x}
	}
	return response, err
}

// recordedBody is the body of an answer that is recorded while the client reads it.
type recordedBody struct {
	io.ReadCloser
	report   *Report
	exchange *exchange
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.report.read(b.exchange, p[:n], err)
	return n, err
}

// Close notes that the client itself ended a watch.
func (b *recordedBody) Close() error {
	b.report.mu.Lock()
	if b.exchange.ending == "" {
		b.exchange.ending = "closed by the client"
	}
	b.report.mu.Unlock()
	return b.ReadCloser.Close()
}

// userOf returns the user of a client configuration as far as it can be seen: by its name, its certificate or its token.
func userOf(config *rest.Config) string {
	if config.Username != "" {
		return config.Username
	}
	if user := subjectOf(config.BearerToken); user != "" {
		return user
	}
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		data, _ = os.ReadFile(config.CertFile) // without it, no client can be made either
	}
	if block, _ := pem.Decode(data); block != nil {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			return certificate.Subject.CommonName
		}
	}
	return ""
}

// subjectOf returns the subject of a token if it is a JSON web token.
func subjectOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(data, &claims) != nil {
		return ""
	}
	return claims.Subject
}
