package fairness

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// ended makes the flow control end quietly. Its worker may write the status of flow schemas while the server ends, and
// would log as errors that it no longer can. It takes a 404 for a schema that was deleted meanwhile, and logs nothing.
type ended struct{ atomic.Bool }

// wrap returns a configuration whose requests get a 404 if they fail after the end.
func (e *ended) wrap(config *rest.Config) *rest.Config {
	own := rest.CopyConfig(config)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return endedTransport{next, e} })
	return own
}

type endedTransport struct {
	next  http.RoundTripper
	ended *ended
}

// RoundTrip implements http.RoundTripper.
func (t endedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err == nil || !t.ended.Load() {
		return response, err
	}
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"the server has ended"}`
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status)),
		ContentLength: int64(len(status)), Request: r,
	}, nil
}
