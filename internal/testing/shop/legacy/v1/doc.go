// Package v1 is where the tests' API comes from: another group, and another
// kind.
//
// +groupName=legacy.example.com
package v1
