// Package v1alpha1 is the first version of the wardle API, and the storage version.
//
// +groupName=wardle.example.com
// +k8s:protobuf-gen=package
package v1alpha1
