// Package etcdtest tests the etcd backend against real etcd servers in this process. It is a module of its own
// because it links the server, which a program that only stores objects in etcd does not need.
package etcdtest
