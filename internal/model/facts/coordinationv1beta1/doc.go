// Package coordinationv1beta1 holds generated facts about the API package k8s.io/api/coordination/v1beta1, whose
// lease candidates a control plane serves if it is told to.
package coordinationv1beta1
