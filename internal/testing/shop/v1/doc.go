// Package v1 is the hub version of an API that the project's own tests serve: a
// kind with everything, and a small one.
//
// +groupName=shop.example.com
package v1

//go:generate go run -C ../../../../cmd/annex . generate ../../internal/testing/shop/...
