// Package v1beta1 is the older version of the tests' API.
//
// +groupName=shop.example.com
package v1beta1
