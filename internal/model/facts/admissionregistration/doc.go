// Package admissionregistration holds generated facts about the API package k8s.io/api/admissionregistration/v1, whose group a
// control plane serves by itself: admissionregistration.k8s.io.
package admissionregistration
