// Package conformance runs Kubernetes' own end-to-end tests of API machinery, those of SIG API Machinery, against
// annex serve and against a real kube-apiserver. It has tests only: see the README beside it.
package conformance
