package auth

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/credential"
)

// refusalsInterval is how long the log is silent about further refusals.
const refusalsInterval = time.Minute

// Quiet is an authenticator whose errors are logged at most once a minute, with their number,
// and are then no errors but callers that are not known: upstream's filter logs each, and
// wrong tokens cost nothing to send. Errors of credentials that are verified once more are returned.
func Quiet(known authenticator.Request) authenticator.Request {
	return &quiet{known: known}
}

type quiet struct {
	known authenticator.Request

	mu       sync.Mutex
	reported time.Time
	refused  int
}

// AuthenticateRequest implements authenticator.Request.
func (q *quiet) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := q.known.AuthenticateRequest(r)
	if err != nil && credential.IsAgain(r.Context()) {
		return nil, false, err
	}
	if err != nil {
		q.report(r, err)
		return nil, false, nil
	}
	return response, ok, nil
}

func (q *quiet) report(r *http.Request, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refused++
	if now := time.Now(); now.Sub(q.reported) >= refusalsInterval {
		klog.FromContext(r.Context()).Error(err, "Credentials were refused", "requests", q.refused)
		q.reported, q.refused = now, 0
	}
}
