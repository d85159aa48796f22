// Package server groups the packages that turn groups and storages into an API server of k8s.io/apiserver.
//
// It holds the handler chain with the only use of upstream's options and configuration (upstream), and the
// components of the chain: audit and its log files (audit, logfile), the last requests (requestlog), queries (query),
// the history (history), streams (streams), operations (operations) and the loopback connection of the server to itself
// (loopback).
//
// It must not hold decisions that depend on a mode or a user: package program passes them in.
//
// A request enters at the outermost filter of upstream's chain. It continues in fastpath if the gate there accepts
// it, else in upstream's routing, and reaches storage/registry in both cases.
package server
