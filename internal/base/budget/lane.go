package budget

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Class decides which part of a lane a request may take.
type Class uint8

const (
	// Ordinary requests leave the reserve of each lane alone.
	Ordinary Class = iota
	// Urgent requests may take the reserve for small needs: leases, which controllers lose when they cannot renew
	// them.
	Urgent
	// Privileged requests may take the reserve of each lane: administrators and the server's own clients.
	Privileged
)

// Caller identifies the user and connection that a request is accounted to.
type Caller struct {
	// User shares a lane with other users. Requests of the same user compete with each other.
	User string
	// Connection shares the turns of its user with the user's other connections.
	Connection string
	Class      Class
}

// reserve is the divisor of a lane for the part that ordinary requests leave alone.
const reserve = 8

// lane is a part of a budget with a queue of its own. Its owner's mutex guards it.
//
// A user that holds a share may take more only while it holds no more than stays free. So a single user gets half of
// the lane, a second one beside it a quarter, and a third user always finds room. A user that holds nothing may take
// whatever fits.
type lane struct {
	bytes, used int64
	users       map[string]*user // users that hold or wait
	waiting     int
	mostWaiting int
	turn        uint64 // of the user that was admitted last
}

// user is a user's share of a lane, with its waiting requests.
type user struct {
	held int64
	// turn orders the waiting users. It grows with each request that is admitted from the queue.
	turn  uint64
	queue []*waiting
	tag   uint64 // of the request that was admitted last
}

// waiting is a request in a queue. It is admitted when ready is closed.
type waiting struct {
	caller Caller
	bytes  int64
	tag    uint64 // orders the requests of a user; requests of one connection have different tags
	ready  chan struct{}
}

func newLane(bytes int64, mostWaiting int) lane {
	return lane{bytes: bytes, users: map[string]*user{}, mostWaiting: mostWaiting}
}

// limit returns the part of the lane that a class may take.
func (l *lane) limit(class Class) int64 {
	if class == Ordinary {
		return l.bytes - l.bytes/reserve
	}
	return l.bytes
}

func (l *lane) user(name string) *user {
	u := l.users[name]
	if u == nil {
		u = &user{}
		l.users[name] = u
	}
	return u
}

func (l *lane) forget(name string, u *user) {
	if u.held == 0 && len(u.queue) == 0 {
		delete(l.users, name)
	}
}

// fits reports whether there is room for so many bytes.
func (l *lane) fits(class Class, bytes int64) bool { return l.used+bytes <= l.limit(class) }

// fair reports whether a user may hold so many bytes more.
func (l *lane) fair(u *user, class Class, bytes int64) bool {
	return u == nil || u.held == 0 || u.held+bytes <= l.limit(class)-l.used-bytes
}

// take takes a share if it is available now, without overtaking waiting requests.
func (l *lane) take(c Caller, bytes int64) bool {
	if l.waiting > 0 || !l.fits(c.Class, bytes) || !l.fair(l.users[c.User], c.Class, bytes) {
		return false
	}
	l.add(c, bytes)
	return true
}

func (l *lane) add(c Caller, bytes int64) {
	if bytes == 0 {
		return
	}
	l.used += bytes
	l.user(c.User).held += bytes
}

// give returns a share, and admits waiting requests.
func (l *lane) give(c Caller, bytes int64) {
	if bytes == 0 {
		return
	}
	l.used -= bytes
	u := l.users[c.User]
	u.held -= bytes
	l.forget(c.User, u)
	l.admit()
}

// enqueue adds a request to the queue, and returns false if its user, or all users together, fill the queue. One user
// may fill half of it.
func (l *lane) enqueue(w *waiting) bool {
	u, most := l.user(w.caller.User), l.mostWaiting
	if w.caller.Class != Ordinary {
		most += most / reserve
	}
	if l.waiting >= most || len(u.queue) > 0 && len(u.queue)+1 > most-l.waiting {
		l.forget(w.caller.User, u)
		return false
	}
	if len(u.queue) == 0 {
		u.turn = max(u.turn, l.turn)
	}
	w.tag = u.tag
	for _, other := range u.queue {
		if other.caller.Connection == w.caller.Connection {
			w.tag = max(w.tag, other.tag+1)
		}
	}
	u.queue = append(u.queue, w)
	l.waiting++
	return true
}

// Errors of await beside the cause of a context's end.
var (
	errQueueFull = errors.New("too many requests wait")
	errPatience  = errors.New("the request has waited for too long")
)

// await waits for a share. It needs the owner's mutex, releases it while it waits, and returns with it held.
func (l *lane) await(ctx context.Context, owner *sync.Mutex, patience time.Duration, c Caller, bytes int64) error {
	w := &waiting{caller: c, bytes: bytes, ready: make(chan struct{})}
	if !l.enqueue(w) {
		return errQueueFull
	}
	l.admit() // the waiting requests may all be blocked by the parts of their users
	owner.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = errPatience
	}
	owner.Lock()
	if err == nil || !l.leave(w) {
		return nil
	}
	return err
}

// leave removes a request from the queue, and returns false if it has been admitted.
func (l *lane) leave(w *waiting) bool {
	u := l.users[w.caller.User]
	if u == nil {
		return false
	}
	i := slices.Index(u.queue, w)
	if i < 0 {
		return false
	}
	l.unqueue(u, i)
	l.forget(w.caller.User, u)
	l.admit() // requests behind it may fit
	return true
}

// unqueue removes the request at an index of a user's queue.
func (l *lane) unqueue(u *user, i int) {
	u.queue = slices.Delete(u.queue, i, i+1)
	l.waiting--
}

// next returns the index of the user's next request: connections take turns.
func (u *user) next() int {
	first := 0
	for i, w := range u.queue {
		if w.tag < u.queue[first].tag {
			first = i
		}
	}
	return first
}

// admit admits requests in their turn. A request that does not fit blocks the requests behind it, because they would
// take the room that it waits for. A request whose user has its full part does not block others.
func (l *lane) admit() {
	for l.waiting > 0 {
		admitted := false
		for _, u := range l.inTurn() {
			i := u.next()
			w := u.queue[i]
			if !l.fair(u, w.caller.Class, w.bytes) {
				continue
			}
			if !l.fits(w.caller.Class, w.bytes) {
				return
			}
			l.unqueue(u, i)
			l.add(w.caller, w.bytes)
			l.turn, u.tag = max(l.turn, u.turn), w.tag
			u.turn++
			l.forget(w.caller.User, u)
			close(w.ready)
			admitted = true
			break
		}
		if !admitted {
			return
		}
	}
}

// inTurn returns the waiting users: users with a privileged request first, then by turn.
func (l *lane) inTurn() []*user {
	users := make([]*user, 0, len(l.users))
	for _, u := range l.users {
		if len(u.queue) > 0 {
			users = append(users, u)
		}
	}
	class := func(u *user) Class { return u.queue[u.next()].caller.Class }
	slices.SortFunc(users, func(a, b *user) int {
		return cmp.Or(cmp.Compare(class(b), class(a)), cmp.Compare(a.turn, b.turn), cmp.Compare(a.queue[0].caller.User, b.queue[0].caller.User))
	})
	return users
}
