// Package core holds generated facts about the API package k8s.io/api/core/v1, whose group a
// control plane serves by itself: the core group.
package core
