// Package kube starts Kubernetes clusters without nodes for tests: etcd,
// kube-apiserver and some controllers of kube-controller-manager, as processes of
// their own on loopback addresses, with authorities that belong to the cluster alone.
//
// There is no kube-proxy and there are no pods. An aggregated API server runs beside
// the cluster, and [Cluster.Register] leads the aggregator to it: its Service is one
// of the type ExternalName that says localhost, and the APIService names the real port.
// (Endpoints of a Service cannot say loopback addresses.)
//
// All processes end with the cluster, and on Linux also when the program that started
// them is killed. What they logged stays in the cluster's directory.
package kube
