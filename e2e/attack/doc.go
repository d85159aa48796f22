// Command attack attacks a Kubernetes-style API server and measures its other callers meanwhile.
//
// It starts `annex serve` or a kube-apiserver with an etcd, or uses the kubeconfig of an administrator. Two
// well-behaved callers, an administrator and a user with rights on one namespace, create, get, update, list and
// delete at a steady rate with one connection each. Their latencies are measured while nothing else happens, and then
// during each attack. An attack fails if a request of these callers fails, if their 99th percentile is longer than
// 250 ms and than five times the quiet one, if the memory of the server exceeds its bound, if the attack itself finds
// a security hole, or if the history of the callers' writes is not linearizable.
//
// The attackers are accounts that the program creates: one without rights, another with rights on one namespace, and
// a third with the right to create definitions, policies and webhooks. Attack only servers that are yours: other
// users of such a server are measured, too.
package main
