// Package annex turns Go types into a complete Kubernetes-style API server.
//
// A server is a value: its name, its API groups and their kinds. New opens it inside a program; package program turns
// it into a program with a command line. The methods of a kind's builder, see KindOf, configure the kind. The annex
// tool generates the facts about the Go types (deep copies, OpenAPI, defaults) into one file for each package; the
// function API in this file returns them.
//
// An importer links the handlers of k8s.io/apiserver, but no storage: it imports the storage that its Options name.
// k8s.io/apiserver nevertheless links cobra and the client of etcd.
//
// Nothing is registered globally: two servers in one process are independent.
package annex

import "github.com/annexapi/annex/config"

// ConfigError reports a mistake in the configuration, not a failure to apply it: an invalid definition, option or
// file. Its text is one line, unless it lists several mistakes.
type ConfigError = config.Error
