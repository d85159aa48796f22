// Package v1beta1 is the other version of an API whose rules are tags, one or two of each kind.
//
// +groupName=rules.example.com
package v1beta1
