// Package fastpath is the district of requests that are answered without upstream's handlers, several times
// faster and with the same bytes.
//
// It holds the answers to reads and watches (reads) and to writes of single objects (writes).
//
// It must not hold behaviour: an answer differs from upstream's in nothing but its cost, and a
// request that is unusual in any way is declined before anything has happened.
//
// A request enters behind the filters of server/upstream. It leaves for storage/registry, or back to upstream's routing when
// it is declined.
package fastpath
