package storetest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is what clients asked of a store and were told, in the order in which
// that began and ended, and what watches delivered. It is checked against a store
// that does one thing after the other.

// historyKeys is how many objects there are in a history.
const historyKeys = 4

// operation is what a client asks for.
type operation struct {
	Kind string `json:"kind"` // create, update, delete, get, list, revision
	Key  int    `json:"key,omitempty"`
	// Content marks what a create or an update writes. No two are the same.
	Content string `json:"content,omitempty"`
	// Expected is the revision that a change insists on, 0 for any.
	Expected uint64 `json:"expected,omitempty"`
	// Upsert lets an update make the object.
	Upsert bool `json:"upsert,omitempty"`
	// Stale lets a read be answered from a cache.
	Stale bool `json:"stale,omitempty"`
}

// outcome is what a client is told.
type outcome struct {
	// Error is empty, notFound, exists, conflict or refused. If it is unknown, the
	// operation may have happened, at any time since it began.
	Error string `json:"error,omitempty"`
	// Revision is that of a change, an object, a list or the store.
	Revision uint64 `json:"revision,omitempty"`
	// Saw is the content of the object read or deleted, or that an update replaced;
	// empty if there was none.
	Saw string `json:"saw,omitempty"`
	// Objects are those of a list.
	Objects [historyKeys]object `json:"objects,omitzero"`
}

// object is empty if it does not exist.
type object struct {
	Content  string `json:"content,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

// entry is one line of a history: the call of an operation, its return, or an event
// of a watch.
type entry struct {
	Client int        `json:"client"`
	ID     int        `json:"id"`
	Call   *operation `json:"call,omitempty"`
	Return *outcome   `json:"return,omitempty"`
	Event  *change    `json:"event,omitempty"`
	// Watch is the number of the watch of an event.
	Watch int `json:"watch,omitempty"`
}

// change is what a revision did: it wrote, or deleted, an object with a content.
type change struct {
	Revision uint64 `json:"revision"`
	Key      int    `json:"key"`
	Content  string `json:"content"`
	Deleted  bool   `json:"deleted,omitempty"`
}

// result is an operation with what became of it. Times are places in the history.
type result struct {
	operation
	outcome
	client    int
	call, end int64
	// guessed says that the outcome is known by the events alone.
	guessed bool
	// after is the revision of the change before this one, 0 if it is the first.
	after uint64
}

// results pairs calls with returns. What has not returned is unknown.
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

// watched returns what each watch saw.
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

// checkHistory returns what is wrong with a history. Its watches must have seen all
// of it. cached allows that stale reads are late.
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

// resolve finds out, by the events, what became of operations of unknown outcome,
// and that all others became what was told. Those that have not happened are left
// out.
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
			// Of several deletions of the same object, it cannot be told which one it was:
			// this stands for them all.
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

// expects is the event of a change that has happened.
func (r result) expects() change {
	if r.Kind == "delete" {
		return change{Revision: r.Revision, Key: r.Key, Content: r.Saw, Deleted: true}
	}
	return change{Revision: r.Revision, Key: r.Key, Content: r.Content}
}

// checkReads compares what was read at a revision with what the events make of it.
// That holds for stale reads, too, and those of one client must not go back.
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
	// last is the highest revision that anything has been told of, written that of the
	// last change. The revisions of changes are known, so no change can be left for later:
	// without that, the search would follow each one whose end is not known to where an
	// object is missing.
	last, written uint64
}

// step tells whether an operation can have had its outcome, and what it leaves.
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

// historyPatience bounds the search for an order. It is exponential at worst.
const historyPatience = time.Minute

// checkOrder looks for an order of all operations in which each has the outcome
// that was told, and none comes before one that had ended when it began.
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
