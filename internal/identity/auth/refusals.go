package auth

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/credential"
)

// refusalsInterval is the minimum time between two log lines about refusals.
const refusalsInterval = time.Minute

// Quiet returns an authenticator that logs the errors of known at most once a minute, with their number, and treats
// such callers as unauthenticated. Upstream's filter would log each error, and clients can send wrong tokens at no
// cost. In a context of credential.WithoutCaches, it returns the errors.
func Quiet(known authenticator.Request) authenticator.Request {
	return &quietAuthenticator{known: known}
}

type quietAuthenticator struct {
	known authenticator.Request

	mu       sync.Mutex
	reported time.Time
	refused  int
}

// AuthenticateRequest implements authenticator.Request.
func (q *quietAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := q.known.AuthenticateRequest(r)
	if err != nil && credential.IsWithoutCaches(r.Context()) {
		return nil, false, err
	}
	if err != nil {
		q.report(r, err)
		return nil, false, nil
	}
	return response, ok, nil
}

func (q *quietAuthenticator) report(r *http.Request, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused++
	if now := time.Now(); now.Sub(q.reported) >= refusalsInterval {
		klog.FromContext(r.Context()).Error(err, "Rejected credentials", "requests", q.refused)
		q.reported, q.refused = now, 0
	}
}
