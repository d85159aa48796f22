package upstream

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Aggregation answers for groups that other servers serve.
type Aggregation interface {
	// Join is called once, before the server runs, with what tells of groups: the list, and the merged
	// document.
	Join(groups discovery.GroupManager, merged aggregated.ResourceManager, serializer runtime.NegotiatedSerializer)
	// Wrap answers requests for these groups, which are authorized, and leaves all others to next.
	Wrap(next http.Handler) http.Handler
	// Elsewhere reports whether another server answers a request.
	Elsewhere(info *request.RequestInfo) bool
	// LongRunning says whether a request is for another server and takes its time, but for watches.
	LongRunning(r *http.Request, info *request.RequestInfo) bool
}
