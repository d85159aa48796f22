package e2e

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// traffic records a client's requests to one collection: "list", "watchlist" for a watch that begins with all
// objects, or "watch" with the resource version that it begins at.
type traffic struct {
	resource string

	mu       sync.Mutex
	requests []string
}

// countingTraffic returns a configuration whose clients' requests are counted. They have connections of their own.
// Clients of one configuration share a connection, and if that breaks while one of them writes, Go's HTTP/2 may end
// the watches of the others with an error that client-go attributes to the server, and lists anew.
func countingTraffic(config *rest.Config, resource string) (*rest.Config, *traffic) {
	t := &traffic{resource: resource}
	config = rest.CopyConfig(config)
	config.Dial = (&net.Dialer{}).DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{t, next} })
	return config, t
}

type counter struct {
	traffic *traffic
	next    http.RoundTripper
}

// RoundTrip counts all requests except for refused connections.
func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(r)
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+c.traffic.resource) && !utilnet.IsConnectionRefused(err) {
		c.traffic.add(r, response, err)
	}
	return response, err
}

func (t *traffic) add(r *http.Request, response *http.Response, err error) {
	query := r.URL.Query()
	request := "list"
	switch {
	case query.Get("sendInitialEvents") == "true":
		request = "watchlist"
	case query.Get("watch") == "true":
		request = "watch " + query.Get("resourceVersion")
	}
	if err != nil {
		request += " failed: " + err.Error()
	} else if response.StatusCode != http.StatusOK {
		request += " failed: " + response.Status
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests = append(t.requests, request)
}

func (t *traffic) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.requests)
}

// checkOneStart fails the test unless the client got all objects exactly once, at its start.
func (t *traffic) checkOneStart(tb testing.TB, client string) {
	tb.Helper()
	for i, request := range t.all() {
		if full := request == "list" || request == "watchlist"; full != (i == 0) {
			tb.Errorf("%s: asked for %q, want one watchlist first and watches that resume after it", client, t.all())
			return
		}
	}
}
