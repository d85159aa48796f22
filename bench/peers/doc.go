// Command peers measures whole API servers against each other, in one run on one machine: the project's sample on its
// own storage and on etcd, upstream's sample API server on etcd, and the same kind as a CustomResourceDefinition of
// kube-apiserver. The same clients send the requests, over TLS, to each server directly; the servers alternate at
// every single measurement, and the figures are medians of some rounds.
//
//	go run . -out ../../docs/benchmarks          # the whole, as committed
//	go run . -short                              # smaller, to standard output
//	go run . -short -only requests,watch
//	go run . -before /tmp/wardle-of-main         # an older build as well, and a page before.md
//	go run . -only profiles -pgo server.pgo      # a profile for the compiler
//
// It needs Linux, whose /proc has the servers' resource usage, and the programs that `make cluster` builds. The
// module is outside of go.work, like the cluster's.
package main
