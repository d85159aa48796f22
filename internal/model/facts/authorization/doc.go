// Package authorization holds generated facts about the API package k8s.io/api/authorization/v1, whose group a
// server that stands alone serves by itself: authorization.k8s.io.
package authorization
