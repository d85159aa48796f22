// Package storagemigration holds generated facts about the API package k8s.io/api/storagemigration/v1, whose group a
// control plane serves by itself: storagemigration.k8s.io.
package storagemigration
