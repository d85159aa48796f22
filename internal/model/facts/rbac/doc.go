// Package rbac holds generated facts about the API package k8s.io/api/rbac/v1, whose group a
// server that stands alone serves by itself: rbac.authorization.k8s.io.
package rbac
