// Package kube starts Kubernetes clusters without nodes for tests: etcd, kube-apiserver and some controllers of
// kube-controller-manager, as processes of their own on loopback addresses, with authorities that belong to the
// cluster alone.
//
// There is no kube-proxy and there are no pods. An aggregated API server runs beside the cluster, and
// [Cluster.Register] directs the aggregator to it: its Service is of the type ExternalName with the name localhost,
// and the APIService has the real port. (Endpoints of a Service cannot hold loopback addresses.)
//
// All processes end with the cluster, and on Linux also when the program that started them is killed. Their logs stay
// in the cluster's directory.
package kube
