// Package flowcontrol holds generated facts about the API package k8s.io/api/flowcontrol/v1, whose
// group a server that stands alone serves by itself: flowcontrol.apiserver.k8s.io.
package flowcontrol
