// Package standalone groups the packages of a server without a cluster in front. They do the work for which
// upstream's library relies on a kube-apiserver.
//
// It holds namespaces and the deletion of their content (coreapi), priority and fairness (fairness), the lease and
// event kinds that controllers need (leading), and the list of all resources by discovery (resources).
//
// It must not hold parts that only a control plane needs, because every server links it. Users and rights are in
// identity.
//
// A request enters fairness when it waits for a place in flight, and coreapi as the admission of its namespace and as
// the guard around each create.
package standalone
