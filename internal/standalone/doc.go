// Package standalone is the district of a server that has no cluster in front: what upstream's library expects from a
// kube-apiserver and such a server must do itself.
//
// It holds namespaces and the deletion of their content (coreapi), priority and fairness (fairness), the lease and event kinds
// that controllers need (leading), and the list of all resources by discovery (resources).
//
// It must not hold what only a control plane needs, because every server links it; identity has users and rights.
//
// A request enters fairness when it waits for a place in flight, and coreapi as the admission of its namespace and as
// the guard around each create.
package standalone
