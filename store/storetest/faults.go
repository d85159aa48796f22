package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// Faults counts the cases of a fault suite and their effects on a store. It may be used by any number of tests
// concurrently.
type Faults struct{ cases, lost, corrupted atomic.Int64 }

// CountFaults returns a count that is printed, under the name of the store, when the test and its subtests have
// ended.
func CountFaults(t testing.TB, name string) *Faults {
	f := &Faults{}
	t.Cleanup(func() {
		fmt.Printf("faults (%s): %d cases injected, %d acknowledged writes lost, %d silent corruptions\n",
			name, f.cases.Load(), f.lost.Load(), f.corrupted.Load())
	})
	return f
}

// Injected counts one case: an operation was made to fail, or data was damaged.
func (f *Faults) Injected() { f.cases.Add(1) }

// Lost fails the test because this number of acknowledged writes is missing.
func (f *Faults) Lost(t testing.TB, writes int, format string, args ...any) {
	t.Helper()
	f.lost.Add(int64(writes))
	t.Errorf(format, args...)
}

// Corrupted fails the test because data was read that no client wrote, without an error.
func (f *Faults) Corrupted(t testing.TB, format string, args ...any) {
	t.Helper()
	f.corrupted.Add(1)
	t.Errorf(format, args...)
}
