// Package v2 refers to types of v1, which is generated in the same pass.
package v2

// +groupName=shop.example.com
// +versionName=v2beta1
// +k8s:openapi-model-package=com.example.models
