//go:build !linux

package budget

// machineMemory returns the machine's memory in bytes, 0 if it is unknown.
func machineMemory() int64 { return 0 }
