package embedded_test

import (
	"testing"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

func openAt(_ testing.TB, dir string) (journal.Journal, error) {
	return embedded.Open(dir, embedded.Options{})
}

func openNew(t testing.TB) journal.Journal {
	j, err := openAt(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJournal(t *testing.T) { storetest.RunJournal(t, openAt, true) }

func TestRestart(t *testing.T) { storetest.RunRestart(t, openAt) }

func TestStorage(t *testing.T) {
	storetest.RunStorage(t, "embedded", storetest.AboveJournal(openNew))
}

func TestEncryptedStorage(t *testing.T) {
	storetest.RunStorageWith(t, "embedded with aesgcm",
		storetest.Encrypted(storetest.AboveJournal(openNew), storetest.Ciphers(t)["aesgcm"]), storetest.Traits{NotRun: storetest.WithoutSizes})
}

func TestAKilledProcessLosesNothing(t *testing.T) {
	storetest.RunCrash(t, "embedded", func(_ testing.TB, dir string) (journal.Journal, error) {
		return embedded.Open(dir, embedded.Options{MemTableSize: 1 << 20})
	})
}
