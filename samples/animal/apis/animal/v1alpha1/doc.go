// Package v1alpha1 is the API animal.demo.io/v1alpha1.
//
// +groupName=animal.demo.io
// +k8s:protobuf-gen=package
package v1alpha1
