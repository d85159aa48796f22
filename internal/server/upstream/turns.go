package upstream

import (
	"net/http"
	"runtime"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/budget"
)

// turns let requests with large bodies work on half of the processors at once. Go gives each goroutine that has work ten milliseconds
// at a time, so that a small request, which takes many steps, would wait for all large ones at each of them. Users, and the
// connections of one user, take turns.
type turns struct{ places *budget.Places }

const (
	// A body waits for a turn that has so many fields and elements, or as many bytes as cost as much: work of some 10 milliseconds.
	manyElements = 2000
	elementBytes = 512
	// longestTurn is how long a request keeps its turn. It goes on without one after that: a webhook, a hook or a storage may hold
	// it up, for which others do not wait.
	longestTurn = time.Second
	// mostWaitingForTurns is how many requests wait for their turns: more than may be in flight, unless an operator allows that.
	mostWaitingForTurns = 1000
)

func newTurns() turns {
	return turns{budget.NewPlaces(max(1, runtime.GOMAXPROCS(0)/2), mostWaitingForTurns)}
}

const tooManyLarge = "too many requests with large bodies wait for a processor, or too many of this user; try again, with fewer at once; " +
	"the operator may give the server more processors"

// begin waits for the turn of a request for resources with a body of so many bytes, fields and elements. The turn is over when end
// is called, which must be, or after longestTurn. An error is the answer.
func (t turns) begin(r *http.Request, size int, elements int64) (end func(), err error) {
	if elements+int64(size)/elementBytes < manyElements {
		return func() {}, nil
	}
	info, _ := request.RequestInfoFrom(r.Context()) // bodies of others are not read
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
