// Package coordinationv1beta1 holds generated facts about the API package k8s.io/api/coordination/v1beta1. A control
// plane serves its lease candidates if they are enabled.
package coordinationv1beta1
