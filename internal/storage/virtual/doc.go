// Package virtual serves objects that are in another system: a database, a
// directory, the API of a vendor. What a user gives is a source, which can get one
// object, list all of them, and perhaps write and tell about changes. What clients
// get is a storage.Interface, so that everything above it is the same as for objects
// that the server stores itself.
//
// # The mirror
//
// A source has no resource versions, no history and no pages. So what it said last
// about every object is kept in a revisioned core of the kind's own, in memory:
// the mirror. Each answer of the source is compared with the mirror, and what
// differs becomes a write there, with the next revision. Selectors, pages, exact
// revisions, bookmarks and watches are then those of the core.
//
// The mirror begins empty, at a revision made of the time, and is filled when
// a client first asks for anything; that of a kind that cannot be watched, when
// a client first lists. A revision of an earlier process is thus older
// than all of its history: a client that resumes from it is told that it has expired, and
// lists anew. One that is newer than all of its history, from a clock that was set
// back or from another server with a mirror of its own, has expired too, rather than
// being waited for as elsewhere. So no event is ever missed silently.
//
// # Reads
//
// A get or list that names no resource version asks the source, and answers from
// the mirror once that shows what the source said; callers that come while the
// source is asked share its next answer. A read that is content with something
// older, at resource version 0 say, is answered by the mirror alone. If the source
// fails, a read that has to ask it is a 503 that says why; watches stay.
//
// While there are watches, the source is asked every now and then, or whenever its
// change feed says so. Otherwise it is not asked.
//
// # Writes
//
// A write gets the object from the source, decides on that, lets the source write,
// and gets the object again, so that the writer reads its write. Between the look
// and the write the source itself may change: it is given the object that the
// decision was made on, and says that there is a conflict if that is no longer so.
//
// # Order
//
// Two answers of a source may arrive in another order than they were given in, and
// the older must not replace the newer. Answers about one object take turns, which
// is simple. A list and a turn that overlap are compared for the object's sake: if
// the list showed something new about it, the turn asks again; if the turn was
// there first and the list says something else, the list asks again about that one.
package virtual
