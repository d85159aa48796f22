package memory_test

import (
	"testing"

	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

var backend = storetest.AboveJournal(func(testing.TB) journal.Journal { return memory.New() })

func TestStorage(t *testing.T) { storetest.RunStorage(t, "memory", backend) }

func TestJournal(t *testing.T) {
	open := func(testing.TB, string) (journal.Journal, error) { return memory.New(), nil }
	storetest.RunJournal(t, open, false)
}

func BenchmarkStorage(b *testing.B) { storetest.BenchmarkStorage(b, backend, 1500) }
