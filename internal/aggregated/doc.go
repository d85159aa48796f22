// Package aggregated groups the packages of a server behind a kube-apiserver.
//
// It holds the authenticators, authorizer and admission that ask the kube-apiserver in front (cluster), the
// permissions and names that the server needs there (requirements), and the serving certificate that is kept in the
// cluster (servingcert).
//
// It must not hold users, roles or namespaces of its own: the cluster in front has them. Its counterpart is
// standalone.
//
// A request enters cluster when its caller is authenticated, authorized, queued or admitted; it leaves for the
// kube-apiserver only if no cached answer is recent enough.
package aggregated
