// Package mvcc is the revisioned core: it makes a store.Backend, with a
// storage.Interface for every resource, out of a journal.
//
// storage.Interface is hard to get right, so it is written once, here, and a
// backend only has to make records durable. There is no watch cache in front:
// gets, lists, consistent reads and watches are served from the same memory that
// writes go to, so a reader is never behind, and whatever the watch cache of
// k8s.io/apiserver would have brought is done here: bookmarks, shared encodings,
// exact-revision lists, watches that do not slow down writers.
//
// # State
//
// There is one revision for all resources, and one record for each revision. An
// empty store is at revision 1, so the first write is revision 2.
//
// A version is what one revision made of one key: an encoded object or a
// tombstone. Versions of a key form a chain, newest first. A copy-on-write B-tree
// holds the newest of every key; copying it is free, and so a list reads a
// snapshot without a lock. A list at an older revision walks the same snapshot
// and follows each chain down to that revision, which is why tombstones stay in
// the tree as long as the history reaches back to them.
//
// Encoded bytes of the newest versions are in memory as far as a budget goes, which
// by default is all of a gigabyte: beyond it, those written longest ago are read from
// the journal. For 100,000 objects of 1 KB, keeping none takes 97 MB less, of 233, and
// reading all of them when they are not decoded costs 15 us more of processor time
// each, where decoding costs 20. Keys and the tree, about 180 bytes of each object,
// are always in memory. Values in memory are copied into slabs when they are published,
// away from what requests throw away: that leaves pages which can be given back. A
// slab that has lost a quarter of its values is given up, and the rest of it moved.
//
// Decoded objects of the newest versions are kept beside the bytes as far as another
// budget goes. When hardly anything is written any more, those are let go that were kept
// because they were written, and that nothing has read since. When a version is replaced, its object goes to the event that replaced it
// if there are watches, and is let go otherwise. Decoded objects are shared by all readers
// and never changed: readers get a copy of the struct, because encoding sets its kind;
// writers' callbacks get a deep copy; unstructured objects are always copied deeply,
// because a copy of the struct would share their map.
//
// Values that are not decoded yet, after a restart say, are decoded by their first
// reader; a list does so on all processors.
//
// # Indexes
//
// A resource may declare indexes of labels and fields, and then a list whose selector
// asks for a value of one looks at the objects with that value instead of all. The
// first such list builds all indexes of the resource; from then on each brings them
// up to date from the log of events that watches read, and so does compaction before
// it trims what they have not seen of that log. Writers have nothing to do with them.
// What no list has used for ten minutes is let go, and built anew when it is asked for.
//
// A label that no Indexer declares gets an index of its own when a second list of many objects
// selects by it, be it by a value or because it is there: up to sixteen for a resource, and
// as many entries as Options.LabelEntries says. A list that asks for nothing else looks at no object
// if nothing has happened since the index was brought up to date.
//
// Unstructured objects may be decoded by a webhook, so compaction never decodes them: it
// lets go indexes that it would have to bring up to date. And a list waits five seconds
// for indexes at most; then it looks at all objects, as it does while there are none.
//
// They are kept at one revision only, copy-on-write like the tree. For another one,
// be it older because a list is continued or newer because a writer is just adding to
// them, the keys with events in between are looked at besides. So they yield a
// superset of what is selected, from which the selector takes what it wants, as from
// a scan. If it would be half of the objects, it is a scan. An entry takes about 150
// bytes.
//
// # Writes
//
// A writer encodes its object, then takes the writing mutex: the newest version
// of the key, published or not, must be the one that it saw; it takes the next
// revision and appends to the journal. It waits for the journal outside the
// mutex, so that many writers share one sync. Until then it decodes what it wrote,
// for those who read it next, and makes its own answer; a writer that is alone lets
// the journal begin first. When its revision is durable, so is
// every revision before it, and the first of their writers publishes them all, strictly
// in order: into the tree, the history and the logs that watchers read. Then it
// returns, and every later reader sees its write.
//
// What is not published does not exist: not for readers, watchers or the
// callbacks of updates. A writer that meets an unpublished write of its key waits
// until that is published and decides anew on the result.
//
// If the journal fails, it is unknown what became of that record and of those
// after it. Their writers are told so, nothing from there on is shown, and the core
// takes no more writes; reads and watches go on from what is published. That is so
// until the next start, or until the journal is recovered, if the failure was one
// after which that is safe (see recoverFailures). Either way, what turns out to be
// durable is then shown, and the rest has never happened.
//
// # Watches
//
// Each resource has a log of its events, an append-only slice behind an atomic
// pointer. Every watch is one goroutine with a position in that log; waiting ones
// are woken by closing a channel that they share. A slow client blocks its own
// goroutine and nothing else; if compaction passes its position it is told that
// its revision has expired. The objects of an event are shared by all watches and
// remember their encodings, so that an event is encoded once however many clients
// it goes to; that holds for the newest events of a resource, and a watch further
// behind encodes for itself.
//
// Where a selector asks for a value of an index, the values of an event's objects are
// found out once for all watches, and a watch that they do not concern looks no
// further. It is woken all the same: 1,000 watches of which each event concerns one
// take about a microsecond of processor time each.
//
// A bookmark carries a revision up to which nothing is still to come. If a watch
// has delivered everything in its log, that is the published revision of the
// whole store, read under the mutex that publishing holds; otherwise it is the
// last event that the watch has looked at.
//
// # History and compaction
//
// The history is the events above the compacted revision C. A watch can start
// from C or later, and a list can be exact at C or later. When an event leaves
// the history, the object that it replaced or deleted is no longer
// needed: that record goes, and the event's own if it is a tombstone. An object
// from long before C thus stays as long as it is the latest, or the previous one
// of an event in the history.
//
// Objects that were replaced stay in memory only for the newest events; older
// ones are read from the journal on demand. Compaction works in steps
// and announces the new C before anything goes: a reader that misses something
// looks at C, and if that has passed it, its revision has expired; if not, the
// journal is damaged.
//
// # Expiry
//
// An object with a time to live is deleted by the core, by an ordinary write when
// its time has come. A restart in between changes nothing.
//
// # Encryption
//
// Decoded objects stay in memory whatever the transformer says later, as in the
// watch cache of k8s.io/apiserver. Writers always transform what is stored, to
// learn whether it is to be written anew under another key.
package mvcc
