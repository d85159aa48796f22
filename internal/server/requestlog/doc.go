// Package requestlog keeps the last requests of a server in memory, and serves them to administrators as they end.
//
// Every request of a server passes Add, so that it costs one copy of a few hundred bytes under a lock, and no memory: the
// records are bytes in a ring of fixed size, in which new ones take the place of the oldest. A reader has a position in the
// ring, and no queue. One that is slower than the requests finds its position overwritten, continues with the oldest record,
// and is told how many it has lost.
//
// Records have no bodies, no headers, and no credentials of URLs. Of refusals they have the reason and the fields, but no
// messages, which may quote objects.
package requestlog
