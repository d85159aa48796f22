// Package annextest runs a server inside a test: the real server, on a free port of this machine, with its objects in
// memory. It is ready within milliseconds, and tests may run any number of servers concurrently. A Plane is such a server
// whose objects can be copied and kept in a file. The package also
// tests that versions of a kind convert without loss (RoundTrip), and that stored objects stay readable
// (GoldenObjects).
package annextest

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// Start runs the server until the test and its subtests are done, and returns the administrator's client
// configuration. It fails the test if the server does not start, or does not stop without an error.
func Start(t testing.TB, server annex.Server) *rest.Config {
	t.Helper()
	return StartWith(t, server, annex.Options{Storage: memory.Storage()})
}

// StartWith is Start with the caller's options, for example a data directory on which the same test later starts
// another server. Without an address in Listen, it listens on a free port of this machine.
func StartWith(t testing.TB, server annex.Server, options annex.Options) *rest.Config {
	t.Helper()
	return begin(t, server, options).Config()
}
