// Package authentication holds generated facts about the API package k8s.io/api/authentication/v1, whose group a
// server that stands alone serves by itself: authentication.k8s.io.
package authentication
