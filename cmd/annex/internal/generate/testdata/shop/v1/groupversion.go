// A comment that is not the package's.

// Package v1 has a type for each thing that generators treat in a way of its own.
//
// +groupName=shop.example.com
package v1
