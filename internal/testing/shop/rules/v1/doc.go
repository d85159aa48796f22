// Package v1 is the hub of an API whose rules are tags, one or two of each kind.
//
// +groupName=rules.example.com
package v1
