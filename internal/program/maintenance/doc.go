// Package maintenance works on what servers store, below the level of resources:
// backups, their restoring, dumps, checks and figures.
//
// What can be done to a stopped server's storage and to a running server alike is
// a method of Tools. Local does it; Handlers let a running server do it for
// clients that ask it through Remote, which is another Tools.
package maintenance
