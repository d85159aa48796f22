// Package wire is the district of representations: objects as bytes, and bytes on their way to a client.
//
// It holds JSON by plans of Go types (plainjson), YAML of lists (plainyaml), stored bytes that can be answers as
// they are (verbatim), managed fields (managed), the contract by which storages write watch events
// (push), and goroutines with grown stacks (stacks).
//
// It must not hold a kind, a storage or a route: everything here works on any type, and imports nothing but base.
//
// A request enters plainjson and managed as a body; an answer leaves through verbatim, plainjson or plainyaml, a watch
// event through push.
package wire
