// Command bench measures the project's storage against upstream's etcd3 store, bare and with its watch cache, in one
// run on one machine. Each measurement is a Go benchmark of this package in a process of its own; the command runs
// them in rounds, with alternating backends, and writes their medians as a table.
//
//	go run . -out ../docs/benchmarks          # the whole, as committed
//	go run . -short                           # a tenth of it, to standard output
//	go test -run '^$' -bench Create -benchtime 1x .
//
// It needs Linux, whose /proc has the etcd server's resource usage.
package main
