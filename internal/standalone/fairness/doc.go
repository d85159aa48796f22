// Package fairness is priority and fairness of a server that stands alone: flow schemas and
// priority levels are served as kinds of flowcontrol.apiserver.k8s.io, those that every server has
// are made at start and kept, and upstream's flow control queues requests by them.
package fairness
