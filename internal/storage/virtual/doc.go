// Package virtual serves objects that are in another system: a database, a directory, the API of a vendor. The user
// provides a source, which can get one object, list all objects, and perhaps write objects and report changes. The
// package makes a storage.Interface of it, so that all layers above are the same as for objects that the server stores
// itself.
//
// # The mirror
//
// A source has no resource versions, no history and no pages. So the package keeps the last known state of every object
// in a revisioned core of the kind's own, in memory: the mirror. Each result of the source is compared with the mirror,
// and each difference becomes a write to the mirror, with the next revision. The core then provides selectors, pages,
// exact revisions, bookmarks and watches.
//
// The mirror starts empty, at a revision that is derived from the time. It is filled at the first request of a client;
// the mirror of a kind that cannot be watched is filled at the first list. A revision of an earlier process is thus
// older than the whole history, so a client that resumes from it gets an expired error and lists again. A revision that
// is newer than the whole history, because a clock was set back or because another server has its own mirror, has
// expired as well; elsewhere a request waits for such a revision. So no event is ever missed silently.
//
// # Reads
//
// A get or list without a resource version calls the source, and returns the state of the mirror once the mirror has
// the result. Callers that arrive during a call of the source share the next call. A read that accepts older data, for
// example at resource version 0, is answered from the mirror alone. If the source fails, a read that needs it returns a
// 503 with the reason; watches stay open.
//
// While there are watches, the source is polled, and called whenever its change feed reports a change. Otherwise it is
// not called in the background.
//
// # Writes
//
// A write gets the object from the source, decides on it, lets the source write, and gets the object again, so that the
// writer reads its own write. The source may change between the first read and the write. Therefore the write receives
// the object that the decision was based on, and must return a conflict if the object has changed.
//
// # Order
//
// Two results of a source may arrive in another order than they were produced in, and the older one must not replace
// the newer one. Calls about one object take turns, which orders them. If a list and a turn overlap, they are compared
// for each object: if the list changed the object during the turn, the turn calls the source again; if the turn
// finished first and the list differs from its result, the list gets that object again.
package virtual
