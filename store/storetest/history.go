package storetest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history holds the requests of clients and their responses, in the order in which they began and ended, and the
// events of watches. It is checked against a store that performs one operation after the other.

// historyKeys is the number of objects in a history.
const historyKeys = 4

// operation is a request of a client.
type operation struct {
	Kind string `json:"kind"` // create, update, delete, get, list, revision
	Key  int    `json:"key,omitempty"`
	// Content identifies a create or an update. No two contents are the same.
	Content string `json:"content,omitempty"`
	// Expected is the revision that a change insists on, 0 for any.
	Expected uint64 `json:"expected,omitempty"`
	// Upsert lets an update create the object.
	Upsert bool `json:"upsert,omitempty"`
	// Stale lets a read be answered from a cache.
	Stale bool `json:"stale,omitempty"`
}

// outcome is the response to a request.
type outcome struct {
	// Error is empty, notFound, exists, conflict, refused or unknown. With unknown, the operation may have happened
	// at any time since it began.
	Error string `json:"error,omitempty"`
	// Revision is the revision of the change, the object, the list or the store.
	Revision uint64 `json:"revision,omitempty"`
	// Saw is the content of the object that was read, deleted or replaced; empty if there was none.
	Saw string `json:"saw,omitempty"`
	// Objects are the objects of a list.
	Objects [historyKeys]object `json:"objects,omitzero"`
}

// object is empty if it does not exist.
type object struct {
	Content  string `json:"content,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

// entry is one line of a history: the call of an operation, its return, or an event of a watch.
type entry struct {
	Client int        `json:"client"`
	ID     int        `json:"id"`
	Call   *operation `json:"call,omitempty"`
	Return *outcome   `json:"return,omitempty"`
	Event  *change    `json:"event,omitempty"`
	// Watch is the number of the watch of an event.
	Watch int `json:"watch,omitempty"`
}

// change is the effect of a revision: it wrote, or deleted, an object with a content.
type change struct {
	Revision uint64 `json:"revision"`
	Key      int    `json:"key"`
	Content  string `json:"content"`
	Deleted  bool   `json:"deleted,omitempty"`
}

// result is an operation with its outcome. Times are places in the history.
type result struct {
	operation
	outcome
	client    int
	call, end int64
	// guessed reports that only the events reveal the outcome.
	guessed bool
	// after is the revision of the change before this one, 0 if it is the first.
	after uint64
}

// results pairs calls with returns. An operation without a return has an unknown outcome.
func results(history []entry) []result {
	var all []result
	open := map[[2]int]int{}
	for i, e := range history {
		switch id := [2]int{e.Client, e.ID}; {
		case e.Call != nil:
			open[id] = len(all)
			all = append(all, result{operation: *e.Call, outcome: outcome{Error: "unknown"}, client: e.Client, call: int64(i), end: math.MaxInt64})
		case e.Return != nil:
			r := &all[open[id]]
			if r.outcome = *e.Return; r.Error != "unknown" {
				r.end = int64(i)
			}
		}
	}
	return all
}

// watched returns the events of each watch.
func watched(history []entry) (seen [][]change) {
	for _, e := range history {
		if e.Event == nil {
			continue
		}
		for len(seen) <= e.Watch {
			seen = append(seen, nil)
		}
		seen[e.Watch] = append(seen[e.Watch], *e.Event)
	}
	return seen
}

// checkHistory returns the first violation in a history. Its watches must have seen all of it. cached allows stale
// reads to be late.
func checkHistory(history []entry, cached bool) error {
	seen := watched(history)
	if len(seen) == 0 {
		return fmt.Errorf("nothing was watched")
	}
	events := seen[0]
	for i, other := range seen {
		if !slices.Equal(other, events) {
			return fmt.Errorf("watch %d saw %d events %v, watch 0 %d events %v", i, len(other), other, len(events), events)
		}
	}
	for i, e := range events {
		if i > 0 && e.Revision <= events[i-1].Revision {
			return fmt.Errorf("the event at revision %d came after that at %d", e.Revision, events[i-1].Revision)
		}
	}
	all, err := resolve(results(history), events)
	if err != nil {
		return err
	}
	if err := checkReads(all, events); err != nil {
		return err
	}
	if cached {
		all = slices.DeleteFunc(all, func(r result) bool { return r.Stale })
	}
	return checkOrder(all)
}

// resolve determines from the events the outcomes of operations with unknown outcome, and checks that all others had
// the reported outcome. It omits operations that did not happen.
func resolve(all []result, events []change) ([]result, error) {
	byRevision, told := map[uint64]change{}, map[uint64]bool{}
	for _, e := range events {
		byRevision[e.Revision] = e
	}
	for _, r := range all {
		if !r.changes() || r.Error != "" {
			continue
		}
		if e := byRevision[r.Revision]; e != r.expects() {
			return nil, fmt.Errorf("%s was told as revision %d, whose event is %+v", r, r.Revision, e)
		}
		if told[r.Revision] {
			return nil, fmt.Errorf("revision %d was told twice", r.Revision)
		}
		told[r.Revision] = true
	}
	var resolved []result
	for _, r := range all {
		if r.Error != "unknown" {
			resolved = append(resolved, r)
			continue
		}
		if !r.changes() {
			continue
		}
		for _, e := range events {
			if told[e.Revision] || e != (result{operation: r.operation, outcome: outcome{Revision: e.Revision, Saw: e.Content}}).expects() {
				continue
			}
			// Of several deletions of the same object, the events do not reveal which one succeeded: this one stands
			// for them all.
			told[e.Revision] = true
			r.outcome = outcome{Revision: e.Revision, Saw: r.Saw}
			if r.Kind == "delete" {
				r.Saw, r.Expected = e.Content, 0
				for _, other := range all {
					if other.Kind == "delete" && other.Key == r.Key && other.Error == "unknown" {
						r.call = min(r.call, other.call)
					}
				}
			}
			r.guessed = true
			resolved = append(resolved, r)
			break
		}
	}
	for _, e := range events {
		if !told[e.Revision] {
			return nil, fmt.Errorf("no operation did what the event at revision %d says: %+v", e.Revision, e)
		}
	}
	after, last := map[uint64]uint64{}, uint64(0)
	for _, e := range events {
		after[e.Revision], last = last, e.Revision
	}
	for i := range resolved {
		resolved[i].after = after[resolved[i].Revision]
	}
	return resolved, nil
}

func (r result) changes() bool {
	return r.Kind == "create" || r.Kind == "update" || r.Kind == "delete"
}

// expects returns the event of a change that has happened.
func (r result) expects() change {
	if r.Kind == "delete" {
		return change{Revision: r.Revision, Key: r.Key, Content: r.Saw, Deleted: true}
	}
	return change{Revision: r.Revision, Key: r.Key, Content: r.Content}
}

// checkReads compares reads at a revision with the state that results from the events. That applies to stale reads,
// too, and the stale reads of one client must not go back in time.
func checkReads(all []result, events []change) error {
	states := map[uint64][historyKeys]object{}
	var state [historyKeys]object
	for _, e := range events {
		state[e.Key] = object{}
		if !e.Deleted {
			state[e.Key] = object{e.Content, e.Revision}
		}
		states[e.Revision] = state
	}
	at := func(revision uint64) [historyKeys]object {
		var last uint64
		for _, e := range events {
			if e.Revision <= revision {
				last = e.Revision
			}
		}
		return states[last]
	}
	newest := map[int]uint64{} // by client
	for _, r := range all {
		if r.Error != "" || r.Kind != "list" {
			continue
		}
		if want := at(r.Revision); r.Objects != want {
			return fmt.Errorf("%s shows %v at revision %d, the events make that %v", r, r.Objects, r.Revision, want)
		}
		if r.Stale && r.Revision < newest[r.client] {
			return fmt.Errorf("%s went back from revision %d to %d", r, newest[r.client], r.Revision)
		}
		newest[r.client] = r.Revision
	}
	return nil
}

func (r result) String() string {
	return fmt.Sprintf("%s of object %d by client %d", r.Kind, r.Key, r.client)
}

// world is the sequential model of the store that histories are checked against.
type world struct {
	objects [historyKeys]object
	// last is the highest revision that any response has revealed, written the revision of the last change. The
	// revisions of changes are known, so no change can be postponed: without that rule, the search would follow each
	// change without a known end up to the point where an object is missing.
	last, written uint64
}

// step reports whether an operation can have had its outcome, and returns the resulting state.
func (w world) step(r result) (bool, world) {
	is := &w.objects[r.Key]
	exists := is.Content != ""
	expected := r.Expected == 0 || r.Expected == is.Revision
	switch r.Error {
	case "":
	case "notFound":
		return !exists && !r.Upsert, w
	case "exists":
		return exists, w
	case "conflict":
		return !expected, w
	case "refused":
		return true, w
	default:
		return false, w
	}
	before := w
	possible := false
	switch r.Kind {
	case "get":
		return *is == object{r.Saw, r.Revision}, w
	case "list":
		possible = r.Objects == w.objects && r.Revision >= w.last
	case "revision":
		possible = r.Revision >= w.last
	case "create":
		possible = !exists && r.Revision > w.last && r.after == w.written
		*is = object{r.Content, r.Revision}
	case "update":
		same := is.Content == r.Saw || r.guessed
		possible = same && (exists || r.Upsert) && expected && r.Revision > w.last && r.after == w.written
		*is = object{r.Content, r.Revision}
	case "delete":
		possible = exists && is.Content == r.Saw && expected && r.Revision > w.last && r.after == w.written
		*is = object{}
	}
	if !possible {
		return false, before
	}
	w.last = r.Revision
	if r.changes() {
		w.written = r.Revision
	}
	return true, w
}

// historyPatience bounds the search for an order, which is exponential in the worst case.
const historyPatience = time.Minute

// checkOrder looks for an order of all operations in which each has its reported outcome, and none comes before an
// operation that had ended when it began.
func checkOrder(all []result) error {
	model := porcupine.Model{
		Init: func() any { return world{} },
		Step: func(state, input, _ any) (bool, any) { return state.(world).step(input.(result)) },
		Hash: func(state any) uint64 { return state.(world).last },
	}
	var operations []porcupine.Operation
	for _, r := range all {
		operations = append(operations, porcupine.Operation{ClientId: r.client, Input: r, Call: r.call, Return: r.end})
	}
	switch porcupine.CheckOperationsTimeout(model, operations, historyPatience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%d operations could not be checked within %s", len(operations), historyPatience)
	}
	return fmt.Errorf("%d operations have no order that explains what was told", len(operations))
}
