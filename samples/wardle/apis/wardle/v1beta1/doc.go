// Package v1beta1 is the preferred version of the wardle API and its hub: it
// can say whatever v1alpha1 can.
//
// +groupName=wardle.example.com
// +k8s:protobuf-gen=package
package v1beta1
