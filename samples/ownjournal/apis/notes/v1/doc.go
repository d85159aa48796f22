// Package v1 is the API of notes.
//
// +groupName=notes.example.com
package v1
