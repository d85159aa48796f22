// Package v1alpha3 is the API devops.devops.io/v1alpha3, the storage version.
//
// +groupName=devops.devops.io
package v1alpha3
