// Package v1alpha1 is the first version of the wardle API, and the one that
// objects are stored in.
//
// +groupName=wardle.example.com
package v1alpha1
