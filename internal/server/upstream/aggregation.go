package upstream

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Aggregation answers requests for groups that other servers serve.
type Aggregation interface {
	// Join is called once, before the server runs, with the list of groups and the merged document of aggregated
	// discovery.
	Join(groups discovery.GroupManager, merged aggregated.ResourceManager, serializer runtime.NegotiatedSerializer)
	// Wrap returns a handler that answers authorized requests for these groups, and passes all other requests to
	// next.
	Wrap(next http.Handler) http.Handler
	// Elsewhere reports whether another server answers a request.
	Elsewhere(info *request.RequestInfo) bool
	// LongRunning reports whether a request is for another server and long-running. Watches need not be reported.
	LongRunning(r *http.Request, info *request.RequestInfo) bool
}
