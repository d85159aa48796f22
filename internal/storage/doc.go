// Package storage groups the packages for stored objects: revisions, watches, and the REST storage of a kind above
// them.
//
// It holds the REST storage of any kind (registry), the revisioned core above a journal (mvcc) with its secondary
// indexes (mvcc/index), kinds whose objects are in another system (virtual), the call by which the registry opens both
// (decorator), the decoding of stored custom resources (custom), questions to the history (past), and the choice of
// resources that are encrypted (encryption). The contracts with journals and backends are the public packages below store.
//
// It must not hold the encoding of requests or responses: package wire knows media types, and package model knows
// kinds.
//
// A request enters registry with a decoded object, passes its strategy and admission, and reaches mvcc with a key. It
// leaves as a record in a journal of store, and returns as a stored object or as events.
package storage
