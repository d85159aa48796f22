package upstream

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/annexapi/annex/internal/identity/credential"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/stacks"
)

// withAuthentication authenticates requests. It answers 401 if the caller is unknown, and 503 if the cluster could
// not be asked: clients discard credentials that are refused with 401.
func withAuthentication(handler http.Handler, config Config, c *server.Config) http.Handler {
	// Upstream's configuration has put a check of the loopback token in front of the authenticator. This
	// authenticator knows the token itself, and with both each wrong token would be logged as two errors.
	known, refuse, cluster := credential.NotingUser(config.Authenticator), filters.Unauthorized(c.Serializer), config.Cluster
	if cluster == nil {
		refuse = filters.WithFailedAuthenticationAudit(refuse, config.AuditSink, config.AuditPolicy)
		return filters.WithAuthentication(handler, known, refuse, nil, c.Authentication.RequestHeaderConfig)
	}
	type unanswered struct{}
	noting := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := known.AuthenticateRequest(r)
		if problem, noted := r.Context().Value(unanswered{}).(*error); noted && err != nil {
			*problem = cluster.AuthenticationUnavailable(err)
		}
		return response, ok, err
	})
	var failed http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem, noted := r.Context().Value(unanswered{}).(*error)
		if !noted || *problem == nil {
			refuse.ServeHTTP(w, r)
			return
		}
		if r.ProtoMajor == 2 {
			// As with a 401, the connection of an unknown caller ends.
			w.Header().Set("Connection", "close")
		}
		answerError(w, r, apierrors.NewServiceUnavailable((*problem).Error()), c)
	})
	failed = filters.WithFailedAuthenticationAudit(failed, config.AuditSink, config.AuditPolicy)
	asked := filters.WithAuthentication(handler, noting, failed, nil, c.Authentication.RequestHeaderConfig)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), unanswered{}, new(error))))
	})
}

// withClusterUnavailable answers 503 to requests that need the cluster's authorization while the cluster is
// unavailable. Without it each of them would wait for several retries and get a 500 that does not name the cause.
func withClusterUnavailable(handler http.Handler, cluster Cluster, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem := cluster.AuthorizationUnavailable()
		if problem == nil {
			handler.ServeHTTP(w, r)
			return
		}
		attributes, err := filters.GetAuthorizerAttributes(r.Context())
		if err != nil {
			answerError(w, r, apierrors.NewInternalError(err), c)
			return
		}
		if decision, _, _ := cluster.Open().Authorize(r.Context(), attributes); decision == authorizer.DecisionAllow {
			handler.ServeHTTP(w, r)
			return
		}
		answerError(w, r, apierrors.NewServiceUnavailable(problem.Error()), c)
	})
}

// withLimits limits the requests in flight: by priority levels while controlled returns true, otherwise by their
// number.
func withLimits(handler http.Handler, controlled func() bool, c *server.Config) http.Handler {
	counted := serverfilters.WithMaxInFlightLimit(handler, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	counted = withFairPlaces(counted, c)
	if c.FlowControl == nil {
		return counted
	}
	estimate := flowcontrolrequest.NewWorkEstimator(c.StorageObjectCountTracker.Get, c.FlowControl.GetInterestedWatchCount,
		flowcontrolrequest.DefaultWorkEstimatorConfig(), c.FlowControl.GetMaxSeats)
	// Priority and fairness stops counting a watch when its handlers return.
	queued := withSeatsGivenUp(push.Within(handler), func(handler http.Handler) http.Handler {
		return serverfilters.WithPriorityAndFairness(handler, c.LongRunningFunc, c.FlowControl, estimate, c.RequestTimeout/4)
	})
	if controlled == nil {
		return queued
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if controlled() {
			queued.ServeHTTP(w, r)
			return
		}
		counted.ServeHTTP(w, r)
	})
}

// withSeatsGivenUp lets lists keep their seats only until they begin to be written: from then on, the client decides
// how long they take. Priority and fairness ends a request only when its handler returns, so lists run on a goroutine
// of their own.
func withSeatsGivenUp(handler http.Handler, seated func(http.Handler) http.Handler) http.Handler {
	inside := seated(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := bufferedResponseFrom(r.Context())
		if d == nil || d.limit != mostOfList || d.passes {
			handler.ServeHTTP(w, r)
			return
		}
		d.begun, d.ended = make(chan struct{}), make(chan any, 1)
		go func() {
			defer func() { d.ended <- stacks.WithStack(recover()) }()
			handler.ServeHTTP(w, r)
		}()
		select {
		case <-d.begun:
		case reason := <-d.ended:
			d.ended <- reason
		}
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside.ServeHTTP(w, r)
		if d := bufferedResponseFrom(r.Context()); d != nil && d.ended != nil {
			if reason := <-d.ended; reason != nil {
				panic(reason)
			}
		}
	})
}
