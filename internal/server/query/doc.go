// Package query implements queries over objects of every kind: pages in the order of a field, filters, word search,
// counts, and tails, which continue with later changes. It parses requests and writes responses. For the objects, it
// sends an ordinary list or watch of the resource through the regular handlers, and so uses their namespaces,
// selectors, conversions and errors.
//
// A cursor contains the position in an order behind which the next page begins. It grants no access, since every
// request is authorized by itself. Therefore it has a checksum over its query and no secret. A cursor of another
// query, or a handwritten one, is rejected; cursors of other replicas, or from before a restart, are valid.
package query
