package memory_test

import (
	"testing"

	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func open(testing.TB, string) (journal.Journal, error) { return memory.New(), nil }

var backend = storetest.AboveJournal(open)

func TestStorage(t *testing.T) { storetest.RunStorage(t, "memory", backend) }

func TestStorage_encrypted(t *testing.T) {
	storetest.RunStorageWith(t, "memory with aescbc",
		storetest.Encrypted(backend, storetest.Ciphers(t)["aescbc"]), storetest.Traits{NotRun: storetest.WithoutSizes})
}

func TestJournal(t *testing.T) { storetest.RunJournal(t, open, false) }

func TestNewAfter_firstRevision(t *testing.T) {
	const later = 1_800_000_000_000_000
	j := memory.NewAfter(later)
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		t.Errorf("replayed %v", r)
		return nil
	})
	if err != nil || compacted != later {
		t.Errorf("compacted revision %d, error %v, want %d", compacted, err, later)
	}
	for _, revision := range []uint64{2, later, later + 2} {
		if _, err := j.Append(journal.Record{Revision: revision, Key: "k"}); err == nil {
			t.Errorf("revision %d was accepted", revision)
		}
	}
	if _, err := j.Append(journal.Record{Revision: later + 1, Key: "k"}); err != nil {
		t.Error(err)
	}
}

func TestLinearizable(t *testing.T) {
	storetest.RunLinearizable(t, "memory", storetest.Subject{Start: storetest.StartAboveJournal(open)})
}

func BenchmarkStorage(b *testing.B) { storetest.BenchmarkStorage(b, backend, 1500) }
