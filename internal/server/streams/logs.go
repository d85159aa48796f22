package streams

import (
	"context"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
)

// Log opens the log with which an agent answers a GET. Errors are those of the agent, as kube-apiserver passes on a
// kubelet's.
func Log(ctx context.Context, b Backend, resource schema.GroupResource, name string) (io.ReadCloser, error) {
	transport := b.transport()
	log := &genericrest.LocationStreamer{
		Location:        b.URL,
		Transport:       responseHeaderTransport{transport, b.Header},
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(resource, name),
		RedirectChecker: genericrest.PreventRedirects,
	}
	body, _, _, err := log.InputStream(ctx, "", "")
	if err != nil {
		transport.CloseIdleConnections()
		return nil, unavailable(err)
	}
	return body, nil
}

// responseHeaderTransport adds the headers of a backend.
type responseHeaderTransport struct {
	http.RoundTripper
	header http.Header
}

func (t responseHeaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range t.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return t.RoundTripper.RoundTrip(r)
}
