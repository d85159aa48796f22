// Package wire groups the packages for representations: objects as bytes, and bytes on their way to a client.
//
// It holds JSON encoding by plans of Go types (plainjson), YAML encoding of lists (plainyaml), stored bytes that can be
// responses (verbatim), managed fields (managed), the contract by which storages write watch events (push), and
// goroutines with grown stacks (stacks).
//
// It must not hold a kind, a storage or a route: every package works on any type, and imports only packages of base.
//
// A request enters plainjson and managed as a body. A response leaves through verbatim, plainjson or plainyaml, a watch
// event through push.
package wire
