// Package rbac decides what roles and bindings allow, as kube-apiserver does: the same answers, reasons, refusals of
// escalation, validation, aggregation and bootstrap roles. It stores and serves nothing.
//
// A Policy is an index in two halves. One says of each verb, group and resource which roles allow it, the other says of
// each user and group, in each namespace, which roles are bound to them. An authorization is a few lookups in either half
// and asks whether two sets of roles have a member in common. So nothing is computed for a subject ahead of time and
// nothing is cached: a change of a role concerns the first half only and a change of a binding the second, and memory is
// linear in what roles and bindings say. That holds for bindings of thousands of roles to one user, and for refusals,
// which have to consider everything that could allow.
package rbac
