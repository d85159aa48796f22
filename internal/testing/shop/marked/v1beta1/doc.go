// Package v1beta1 is an older version of the API for the project's own tests.
//
// +groupName=marked.shop.example.com
package v1beta1
