// Package events holds generated facts about the API package k8s.io/api/events/v1, whose group a
// control plane serves by itself: events.k8s.io.
package events
