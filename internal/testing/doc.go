// Package testing is the district of packages that only tests import.
//
// It holds the tests of the server as a whole (apitest), the API that they serve (shop), and tools of tests: a file system that
// loses power (crashfs), logs (testlog), waiting (testwait), recorded terminals (transcript), a client that does not read
// (stalled), a server without workloads for the console (plane), the comparison of command lines with pages (clidoc), and of upstream declarations with upstream.lock
// (upstreamlock), and the programs of make lint: prose, and lint, which is a module of its own.
//
// It must not hold code that a server links; packages beside their owner, such as clustertest, serve the tests of one
// package.
//
// A request of apitest enters a whole server by a real connection, on every storage.
package testing
