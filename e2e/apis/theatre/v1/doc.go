// Package v1 has kinds that use what the samples do not: scale, lists with keys,
// conditions, grace periods.
//
// +groupName=theatre.example.com
package v1
