package upstream

import (
	"net/http"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/base/budget"
)

// healthPaths are served without credentials, so all their callers are the same user.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// callerOf returns the caller to whom a request is accounted: its user and connection.
func callerOf(r *http.Request, info *request.RequestInfo) budget.Caller {
	c := budget.Caller{Connection: r.RemoteAddr}
	if u, ok := request.UserFrom(r.Context()); ok {
		c.User = u.GetName()
		if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			c.Class = budget.Privileged
			return c
		}
	}
	switch {
	case info.IsResourceRequest && info.APIGroup == coordinationv1.GroupName && info.Resource == "leases":
		c.Class = budget.Urgent
	case !info.IsResourceRequest && slices.Contains(healthPaths, info.Path):
		c.Class = budget.Urgent
	}
	return c
}

const tooManyInFlight = "too many requests are in flight, or too many of this user; try again, with fewer concurrent requests; the " +
	"operator can raise the maximum of requests in flight"

// withFairPlaces limits how many requests of one user are in flight, so that other users find places within
// upstream's limits: see budget.Places. A request waits for its place. It is refused if too many requests wait, or if
// it has waited too long. Requests of administrators and of the server itself always pass, as in upstream's filter.
func withFairPlaces(handler http.Handler, c *server.Config) http.Handler {
	places := func(limit int) *budget.Places {
		if limit <= 0 {
			return nil
		}
		return budget.NewPlaces(limit, limit)
	}
	reading, mutating := places(c.MaxRequestsInFlight), places(c.MaxMutatingRequestsInFlight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || c.LongRunningFunc(r, info) {
			handler.ServeHTTP(w, r)
			return
		}
		in := reading
		if mutates(info.Verb) {
			in = mutating
		}
		if in == nil {
			handler.ServeHTTP(w, r)
			return
		}
		caller := callerOf(r, info)
		switch {
		case caller.Class == budget.Privileged:
			if in.TryEnter(caller) {
				defer in.Leave(caller)
			}
		case in.Enter(r.Context(), caller):
			defer in.Leave(caller)
		default:
			metrics.RecordDroppedRequest(r, info, metrics.APIServerComponent, in == mutating)
			metrics.RecordRequestTermination(r, info, metrics.APIServerComponent, http.StatusTooManyRequests)
			answerError(w, r, apierrors.NewTooManyRequests(tooManyInFlight, 1), c)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
