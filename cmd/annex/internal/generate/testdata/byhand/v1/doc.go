// Package v1 has written by hand, or by other tools, much of what is generated
// elsewhere.
//
// +groupName=byhand.example.com
package v1
