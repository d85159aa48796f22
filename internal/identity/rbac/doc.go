// Package rbac decides by roles and bindings as kube-apiserver does, with the same decisions, reasons, escalation
// checks, validation, aggregation and bootstrap roles. It neither stores nor serves them.
//
// A Policy is an index of two halves. The first maps a verb, group and resource to the roles that allow them. The
// second maps a user or group, in each namespace, to the roles that are bound to it. An authorization takes a few
// lookups in either half and checks whether two sets of roles intersect. Nothing is precomputed per subject or
// cached: a change of a role only affects the first half, a change of a binding only the second, and memory is linear
// in the size of roles and bindings. This also holds for a user with thousands of bindings, and for refusals, which
// have to consider everything that could allow the request.
package rbac
