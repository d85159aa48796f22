// Package v1beta1 is the preferred version of the wardle API and its hub: it can represent all objects of v1alpha1.
//
// +groupName=wardle.example.com
// +k8s:protobuf-gen=package
package v1beta1
