// Package index maintains the secondary indexes of a resource: it builds them from the resource's objects, brings them
// up to date from its events, and answers which keys may be selected.
//
// It knows the store only as a Source, so that the store's locks, snapshots and caches are no concern of it. Its results
// are keys and versions, at a revision; package mvcc reads the objects of its own snapshot with them.
//
// A resource has three kinds of indexes, all in one Indexes:
//
//   - declared ones, by a function of the resource's Indexers. All of them are built together.
//   - one for each label that lists select by and that no Indexer declares. Their number and their entries are bounded.
//   - orders, by a field that queries sort by. An order also holds the version of each object.
//
// # Life
//
// Nothing is built before a list or query needs it. The one goroutine that holds the token of a set builds it or brings
// it up to date; a list that comes meanwhile uses the last published state, and waits only if there is none, for at most
// five seconds if reading objects may call webhooks. A query waits without that limit, because it cannot be answered without its order. Readers share
// published states, which are immutable: publishing copies the trees, which costs nothing until they change.
//
// Writers do no work for indexes and never wait for them. Compaction calls Maintenance before it trims events, so that
// an index rarely misses events; an index that has missed some is rebuilt. Indexes without use are dropped.
//
// # Results
//
// A state belongs to one revision. A Result has the keys that had the values of a lookup at that revision, and the keys
// whose values cannot be computed are listed beside it. The reader adds the keys with events between that revision and
// its own, and filters the objects as it filters a scan. An index thus never decides the content of a list, with one
// exception: see Result.Exact.
package index
