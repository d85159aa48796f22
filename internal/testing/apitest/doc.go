// Package apitest holds the black-box tests of the server: what clients see over HTTP, with
// every storage, under faults, and from the command line. A file is a topic. The tests are
// here and not beside the façade, because what they prove is the work of all rooms together.
package apitest
