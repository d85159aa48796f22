package upstream

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// withAnswers refuses with 503 what only the cluster could authorize while it cannot be
// asked. Without it, each such request would wait for several tries, and get a 500 that
// does not say what is missing.
func withAnswers(handler http.Handler, cluster Cluster, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem := cluster.AuthorizationUnavailable()
		if problem == nil {
			handler.ServeHTTP(w, r)
			return
		}
		attributes, err := filters.GetAuthorizerAttributes(r.Context())
		if err != nil {
			responsewriters.InternalError(w, r, err)
			return
		}
		if decision, _, _ := cluster.Open().Authorize(r.Context(), attributes); decision == authorizer.DecisionAllow {
			handler.ServeHTTP(w, r)
			return
		}
		gv := schema.GroupVersion{}
		if info, ok := request.RequestInfoFrom(r.Context()); ok {
			gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		}
		responsewriters.ErrorNegotiated(apierrors.NewServiceUnavailable(problem.Error()), c.Serializer, gv, w, r)
	})
}

// withLimits bounds the requests in flight: by the cluster's priority levels as long as they
// are known, else by their number.
func withLimits(handler http.Handler, cluster Cluster, c *server.Config) http.Handler {
	counted := serverfilters.WithMaxInFlightLimit(handler, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	if c.FlowControl == nil {
		return counted
	}
	estimate := flowcontrolrequest.NewWorkEstimator(c.StorageObjectCountTracker.Get, c.FlowControl.GetInterestedWatchCount,
		flowcontrolrequest.DefaultWorkEstimatorConfig(), c.FlowControl.GetMaxSeats)
	queued := serverfilters.WithPriorityAndFairness(handler, c.LongRunningFunc, c.FlowControl, estimate, c.RequestTimeout/4)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if cluster.FlowControlled() {
			queued.ServeHTTP(w, r)
			return
		}
		counted.ServeHTTP(w, r)
	})
}
