// Package v1alpha1 is the first version of the restaurant's API: it names a topping as often as it is
// on the pizza.
//
// +groupName=restaurant.wukong.com
// +k8s:protobuf-gen=package
package v1alpha1
