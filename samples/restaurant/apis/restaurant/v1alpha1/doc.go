// Package v1alpha1 is the first version of the restaurant's API. It lists a topping once for each portion.
//
// +groupName=restaurant.wukong.com
// +k8s:protobuf-gen=package
package v1alpha1
