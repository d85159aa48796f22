// Package v1alpha is the API autobusi.group.cicd/v1alpha.
//
// +groupName=autobusi.group.cicd
// +k8s:protobuf-gen=package
package v1alpha
