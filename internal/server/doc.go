// Package server is the district that turns groups and storages into an API server of k8s.io/apiserver.
//
// It holds the handler chain and the only use of upstream's options and configuration (upstream), and what the chain
// contains: audit and its log files (audit, logfile), queries (query), streams (streams), operations (operations)
// and the way of the server to itself (loopback).
//
// It must not hold what a mode or a user decides: program hands that in.
//
// A request enters at the outermost filter of upstream's chain. It leaves for fastpath if the gate there accepts
// it, else for upstream's routing, and reaches storage/registry in both cases.
package server
