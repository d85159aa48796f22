//go:build !linux

package budget

// forgetProgram does nothing where it is not known how.
func forgetProgram() {}
