package embedded_test

import (
	"testing"

	"github.com/annexapi/annex/store/storetest"
)

// TestFaults injects the faults of disks below a journal, and counts the outcomes.
func TestFaults(t *testing.T) {
	faults := storetest.CountFaults(t, "embedded")
	for _, test := range []struct {
		name string
		run  func(*testing.T, *storetest.Faults)
	}{
		{"an error of the disk makes the journal read-only", errorsOfTheDisk},
		{"a file that misbehaves makes the journal read-only", filesThatMisbehave},
		{"a torn rename loses nothing", tornRenames},
		{"an error at any operation loses nothing", errorsAtAnyOperation},
		{"a power cut loses nothing acknowledged", powerCuts},
		{"a flipped bit is reported or without effect", flippedBits},
		{"damage is reported by revision and nothing else is lost", damagedRecords},
		{"a lost end is reported if it was acknowledged", lostEnds},
		{"a store recovers without a restart", recoveries},
		{"a failed sync is not recovered from", failedSyncs},
		{"a failed recovery leaves nothing", failedRecoveries},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, faults) })
	}
}
