// Package v1beta1 is the preferred version of the restaurant's API and its hub: it can represent all objects of
// v1alpha1.
//
// +groupName=restaurant.wukong.com
// +k8s:protobuf-gen=package
package v1beta1
