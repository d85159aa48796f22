// Package mvcc is the revisioned core: it builds a store.Backend, with a storage.Interface for every resource, from a
// journal.
//
// storage.Interface is hard to implement correctly, so this package implements it once, and a journal only has to make
// records durable. There is no watch cache in front of the core. Gets, lists, consistent reads and watches are served
// from the memory that writes go to, so a reader is never behind. The core therefore provides the features of the watch
// cache of k8s.io/apiserver itself: bookmarks, shared encodings, exact-revision lists, and watches that do not slow
// down writers.
//
// # State
//
// There is one revision counter for all resources, and one record for each revision. An empty store is at revision 1,
// so the first write is revision 2.
//
// A version is the result of one revision for one key: an encoded object or a tombstone. Versions of a key form a
// chain, newest first. A copy-on-write B-tree holds the newest version of every key. Copying the tree is free, so a
// list reads a snapshot without a lock. A list at an older revision walks the same snapshot and follows each chain down
// to that revision. For this reason a tombstone stays in the tree as long as the history reaches back to it.
//
// The encoded bytes of the newest versions are kept in memory up to a budget, which by default is all of a gigabyte.
// Above the budget, the values that were written longest ago are read from the journal. For 100,000 objects of 1 KB,
// keeping no values in memory saves 97 MB of 233 MB. Reading all of them when they are not decoded costs 15 us more of
// processor time each, where decoding costs 20 us. Keys and the tree, about 180 bytes for each object, are always in
// memory. Values in memory are copied into slabs when they are published, apart from the garbage of requests, so that
// whole pages can be returned to the operating system. A slab that has lost a quarter of its values is given up, and
// its remaining values are moved.
//
// Decoded objects of the newest versions are kept beside the bytes up to another budget. Once there are hardly any
// writes, the core drops objects that were cached when they were written and have not been read since. When a version
// is replaced, its decoded object goes to the event that replaced it if there are watches, and is dropped otherwise.
// Decoded objects are shared by all readers and never changed. Readers get a copy of the struct, because encoding sets
// its kind. Callbacks of writers get a deep copy. Unstructured objects are always copied deeply, because a copy of the
// struct would share their map.
//
// Values that are not decoded yet, for example after a restart, are decoded by their first reader. A list decodes on
// all processors.
//
// # Indexes
//
// A resource may declare indexes of labels and fields. A list whose selector requires a value of an index then reads
// only the objects with that value. The first such list builds all indexes of the resource. Each later list brings them
// up to date from the log of events that watches read. Compaction does the same before it trims events that the indexes
// have not seen. Writers do no work for indexes. An index that no list has used for ten minutes is dropped, and rebuilt
// when a list needs it. Package index does all of this; index.go here is its view of the store, and reads the objects
// of a snapshot by the keys that it finds.
//
// A label that no Indexer declares gets an index of its own when a second list of many objects selects by it, by a
// value or by existence. A resource has at most sixteen of these indexes, and Options.LabelEntries bounds their
// entries. A list that selects by such a label alone reads no object if there was no event since the index was brought
// up to date.
//
// Decoding an unstructured object may call a webhook, so compaction never decodes unstructured objects: it drops the
// indexes that it would have to bring up to date. A list waits at most five seconds for indexes of such objects, and for
// an update of any index. After that it reads all objects, as it does while there are no indexes. It waits longer for a
// build of other indexes, which decodes the same objects as a scan would: a million take more than five seconds.
//
// Indexes are kept at one revision only, copy-on-write like the tree. A list may be at another revision: at an older
// one because it is continued, or at a newer one because a writer has just added events. It then also reads the keys
// with events between the two revisions. An index therefore yields a superset of the selected objects, and the selector
// filters it as it filters a scan. If the superset would be half of the objects, the list scans instead. An entry takes
// about 150 bytes.
//
// # Writes
//
// A writer encodes its object, then takes the writing mutex. The newest version of the key, published or not, must be
// the version that the writer saw. The writer takes the next revision and appends its record to the journal. It waits
// for the journal outside the mutex, so that many writers share one sync. While it waits, it decodes the object that it
// wrote, for its next readers, and encodes its own response. A writer that is alone lets the journal start the sync
// first. When its revision is durable, so is every revision before it. The first of the writers of these revisions
// publishes all of them, strictly in order: into the tree, the history and the logs that watchers read. Then it
// returns, and every later reader sees its write.
//
// An unpublished write does not exist for readers, watchers and the callbacks of updates. A writer that meets an
// unpublished write of its key waits until that write is published and decides anew on the result.
//
// If the journal fails, the outcome of the failed record and of the records after it is unknown. Their writers get an
// error that reports this, nothing from that revision on is published, and the core rejects further writes. Reads and
// watches continue from the published state. This lasts until the next start, or until the journal is recovered, if the
// failure allows a safe recovery (see recoverFailures). In either case, records that turn out to be durable are then
// published, and the others have never happened.
//
// # Watches
//
// Each resource has a log of its events, an append-only slice behind an atomic pointer. Every watch is one goroutine
// with a position in that log. A waiting watch is in a list of the log and is woken by a channel of its own. A slow
// client blocks its own goroutine and nothing else. If compaction passes its position, the watch ends with an error:
// its revision has expired. The objects of an event are shared by all watches and remember their encodings, so an event
// is encoded once for any number of clients. That holds for the newest events of a resource; a watch that is further
// behind encodes for itself.
//
// Where a selector requires a value of an index, the index values of an event's objects are computed once for all
// watches, and a watch whose selector requires another value ignores the event. It is woken all the same: 1,000 watches
// of which each event concerns one take about a microsecond of processor time each.
//
// A bookmark carries a revision up to which the watch has delivered everything. If a watch has delivered every event of
// its log, this is the published revision of the whole store, read under the mutex that publishing holds. Otherwise it
// is the revision of the last event that the watch has processed.
//
// # History and compaction
//
// The history is the events above the compacted revision C. A watch can start from C or later, and a list can be exact
// at C or later. When an event leaves the history, the object that it replaced or deleted is no longer needed: the
// record of that object is trimmed, and the event's own record if it is a tombstone. An object from long before C thus
// stays as long as it is the latest version of its key, or the previous version of an event in the history.
//
// Replaced objects stay in memory only for the newest events; older ones are read from the journal on demand.
// Compaction works in steps and announces the new C before it removes anything. A reader that misses a record compares
// its revision with C: if C has passed it, the revision has expired; if not, the journal is damaged.
//
// # Expiry
//
// The core deletes an object with a time to live by an ordinary write when its time has come. A restart in between
// changes nothing.
//
// # Encryption
//
// Decoded objects stay in memory even if the transformer could no longer decrypt their values, as in the watch cache of
// k8s.io/apiserver. Writers always transform the stored value, to learn whether it must be rewritten under another key.
package mvcc
