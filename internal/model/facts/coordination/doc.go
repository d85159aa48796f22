// Package coordination holds generated facts about the API package k8s.io/api/coordination/v1, whose group a
// control plane serves by itself: coordination.k8s.io.
package coordination
