// Package apiregistration holds generated facts about the API package k8s.io/kube-aggregator/pkg/apis/apiregistration/v1, whose
// group a control plane serves by itself: apiregistration.k8s.io.
package apiregistration
