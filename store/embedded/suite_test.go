package embedded_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/internal/testing/crashfs"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

func openAt(_ testing.TB, dir string) (journal.Journal, error) {
	return embedded.Open(dir, embedded.Options{})
}

func TestJournal(t *testing.T) { storetest.RunJournal(t, openAt, true) }

func TestRestart(t *testing.T) { storetest.RunRestart(t, openAt) }

func TestStorage(t *testing.T) {
	storetest.RunStorage(t, "embedded", storetest.AboveJournal(openAt))
}

func TestStorage_encrypted(t *testing.T) {
	storetest.RunStorageWith(t, "embedded with aesgcm",
		storetest.Encrypted(storetest.AboveJournal(openAt), storetest.Ciphers(t)["aesgcm"]), storetest.Traits{NotRun: storetest.WithoutSizes})
}

func TestKilledProcess_losesNothing(t *testing.T) {
	storetest.RunCrash(t, "embedded", func(_ testing.TB, dir string) (journal.Journal, error) {
		return embedded.Open(dir, embedded.Options{MemTableSize: 1 << 20})
	})
}

// A crash is a power cut: a random part of the unsynced data is lost.
func TestLinearizable(t *testing.T) {
	files := crashfs.New()
	rng := rand.New(rand.NewPCG(1, 1))
	storetest.RunLinearizable(t, "embedded, power cuts", storetest.Subject{
		Start: storetest.StartAboveJournal(func(testing.TB, string) (journal.Journal, error) {
			return embedded.Open(imageDir, embedded.Options{FS: files, MemTableSize: 256 << 10})
		}),
		Crash: func(testing.TB) {
			files = files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		},
	})
}

func TestLinearizable_whenKilled(t *testing.T) {
	storetest.RunLinearizableKilled(t, "embedded, kills", openAt)
}
