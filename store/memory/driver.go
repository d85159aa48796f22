package memory

import (
	"context"
	"time"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// Name is that of the storage.
const Name = "memory"

type storage struct{}

var _ driver.Journal = storage{}

// Storage keeps objects as long as the server lives.
func Storage() driver.Journal { return storage{} }

func (storage) Name() string { return Name }

func (storage) Traits() driver.Traits { return driver.Traits{Ephemeral: true} }

func (storage) Validate(string) error { return nil }

func (storage) Location(string) string { return "" }

// OpenJournal begins at the time in microseconds, a revision that no earlier journal can
// have reached: that took more than a million writes in every second that it lived, or a
// clock that was set back. So clients that resume a watch are told that it has expired.
func (storage) OpenJournal(context.Context, driver.Env) (journal.Journal, error) {
	return NewAfter(uint64(time.Now().UnixMicro())), nil
}
