// Package v1 has kinds for features that the samples lack: scale, lists with keys, conditions, grace periods.
//
// +groupName=theatre.example.com
package v1
