// Package fairness implements priority and fairness of a standalone server. Flow schemas and priority levels are
// served as kinds of flowcontrol.apiserver.k8s.io. The objects that every server has are created at the start and
// maintained, and upstream's flow control queues requests by all of them.
package fairness
