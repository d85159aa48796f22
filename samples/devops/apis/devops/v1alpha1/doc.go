// Package v1alpha1 is the API devops.devops.io/v1alpha1, which older clients use.
//
// +groupName=devops.devops.io
package v1alpha1
