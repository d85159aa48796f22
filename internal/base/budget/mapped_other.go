//go:build !linux

package budget

// forgetProgram does nothing on other systems.
func forgetProgram() {}
