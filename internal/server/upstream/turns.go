package upstream

import (
	"net/http"
	"runtime"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/budget"
)

// turns lets requests with large bodies run on half of the processors at once. Go schedules each runnable goroutine
// for ten milliseconds at a time. A small request takes many steps, and would wait for all large ones at each step.
// Users, and the connections of one user, take turns.
type turns struct{ places *budget.Places }

const (
	// A body waits for a turn if it has manyElements fields and elements, or as many bytes as cost the same: some 10
	// milliseconds of work.
	manyElements = 2000
	elementBytes = 512
	// longestTurn limits how long a request keeps its turn. Afterwards it continues without one: a webhook, a hook or
	// a storage may block it, and other requests must not wait for that.
	longestTurn = time.Second
	// mostWaitingForTurns limits how many requests wait for a turn. It is more than may be in flight, unless an
	// operator allows more.
	mostWaitingForTurns = 1000
)

func newTurns() turns {
	return turns{budget.NewPlaces(max(1, runtime.GOMAXPROCS(0)/2), mostWaitingForTurns)}
}

const tooManyLarge = "too many requests with large bodies wait for a processor, or too many of this user; try again, with fewer " +
	"concurrent requests; the operator can give the server more processors"

// begin waits for the turn of a resource request with a body of size bytes and a number of fields and elements. The
// caller must call end. The turn ends then, or after longestTurn. An error is the error response.
func (t turns) begin(r *http.Request, size int, elements int64) (end func(), err error) {
	if elements+int64(size)/elementBytes < manyElements {
		return func() {}, nil
	}
	info, _ := request.RequestInfoFrom(r.Context()) // only bodies of resource requests are read
	caller := callerOf(r, info)
	if !t.places.Enter(r.Context(), caller) {
		return nil, apierrors.NewTooManyRequests(tooManyLarge, 1)
	}
	over := time.AfterFunc(longestTurn, func() { t.places.Leave(caller) })
	return func() {
		if over.Stop() {
			t.places.Leave(caller)
		}
	}, nil
}
