package memory

import (
	"context"
	"time"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// Name is the name of the storage.
const Name = "memory"

type storage struct{}

var _ driver.Journal = storage{}

// Storage returns a driver that keeps objects in memory, as long as the server runs. A Store keeps them longer.
func Storage() driver.Journal { return storage{} }

func (storage) Name() string { return Name }

func (storage) Traits() driver.Traits { return driver.Traits{Ephemeral: true} }

func (storage) Validate(string) error { return nil }

func (storage) Location(string) string { return "" }

// OpenJournal begins at the current time in microseconds. No earlier journal can have reached that revision unless it
// took more than a million writes in every second of its life, or the clock was set back. So clients that resume a
// watch get an expired error.
func (storage) OpenJournal(context.Context, driver.Env) (journal.Journal, error) {
	return NewAfter(uint64(time.Now().UnixMicro())), nil
}
