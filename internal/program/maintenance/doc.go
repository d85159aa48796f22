// Package maintenance works on the storages of servers, below the level of resources: it backs up, restores, dumps,
// verifies and compacts them, and collects statistics.
//
// Tools has the operations that work on a stopped server's storage and on a running server alike. Local implements
// them on open storages. Handlers serves them over HTTP from a running server, and Remote is the client of
// Handlers.
package maintenance
