// Package v1alpha1 is version v1alpha1 of the API group craft.example.com.
//
// +groupName=craft.example.com
package v1alpha1
