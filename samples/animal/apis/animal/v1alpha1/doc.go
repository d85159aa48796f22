// Package v1alpha1 is the API animal.demo.io/v1alpha1.
//
// +groupName=animal.demo.io
package v1alpha1
