// Package shapes has a field for everything that has a form in protobuf.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
package shapes
