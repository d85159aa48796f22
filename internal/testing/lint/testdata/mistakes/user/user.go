// Package user uses a package with mistakes.
package user

import "example.com/mistakes"

// Use calls a deprecated function.
func Use() { mistakes.Old() }
