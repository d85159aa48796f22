// Package apitest holds the black-box tests of the server: its behaviour over HTTP, with every storage, under faults,
// and from the command line. Each file has one topic. The tests are here and not beside the façade, because they
// cover all packages together.
package apitest
