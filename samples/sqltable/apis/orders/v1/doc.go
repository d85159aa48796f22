// Package v1 is the API of the orders in a table.
//
// +groupName=orders.example.com
package v1
