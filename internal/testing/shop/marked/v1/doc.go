// Package v1 is an API for the project's own tests, with the markers that kubebuilder has.
//
// +groupName=marked.shop.example.com
package v1
