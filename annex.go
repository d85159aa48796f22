// Package annex turns Go types into a complete Kubernetes-style API server.
//
// A Server is a value: a name, API groups and their kinds. New opens it inside a program; package program turns it
// into a program with a command line. The methods of a kind's builder, which KindOf returns, configure the kind.
// The annex tool generates the facts about the Go types (deep copies, OpenAPI, defaults) into one file of each
// package, whose function API returns them.
//
// Importing this package links the handlers of k8s.io/apiserver, but no storage: import the storage that the
// Options name. k8s.io/apiserver itself links cobra and etcd's client.
//
// There are no global registries: two servers in one process are independent.
package annex

import "github.com/annexapi/annex/config"

// ConfigError is an error in the request for a server, not in its execution: a wrong definition, option or file. It
// is one line unless it lists several mistakes.
type ConfigError = config.Error
