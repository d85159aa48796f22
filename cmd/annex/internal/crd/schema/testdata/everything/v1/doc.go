// Package v1 is version v1 of the API group craft.example.com.
//
// +groupName=craft.example.com
package v1
