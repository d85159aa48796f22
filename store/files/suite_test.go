package files_test

import (
	"testing"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// layout is the layout of the suites' objects.
var layout = []driver.Resource{
	{Group: "core", Resource: "pods", Prefix: "/pods", Namespaced: true, Status: true},
	{Group: "core", Resource: "elsewhere", Prefix: "/elsewhere"},
}

func openAt(_ testing.TB, dir string) (journal.Journal, error) {
	return files.Open(dir, files.Options{Resources: layout, Embedded: embedded.Options{MemTableSize: 1 << 20}})
}

// openFollowed opens a tree whose files are written while it is used.
func openFollowed(t testing.TB, dir string) (journal.Journal, error) {
	j, err := openAt(t, dir)
	if err != nil {
		return nil, err
	}
	return follow(t, j.(*files.Journal)), nil
}

func TestStorage(t *testing.T) {
	storetest.RunStorage(t, "files", storetest.AboveJournal(openFollowed))
}

func TestStorage_encrypted(t *testing.T) {
	storetest.RunStorageWith(
		t,
		"files with aesgcm",
		storetest.Encrypted(
			storetest.AboveJournal(openFollowed),
			storetest.Ciphers(t)["aesgcm"],
		),
		storetest.Traits{NotRun: storetest.WithoutSizes},
	)
}

func TestJournal(t *testing.T) { storetest.RunJournal(t, openFollowed, true) }

func TestRestart(t *testing.T) { storetest.RunRestart(t, openFollowed) }

func TestKilledProcess_losesNothing(t *testing.T) { storetest.RunCrash(t, "files", openFollowed) }

func TestLinearizable(t *testing.T) {
	storetest.RunLinearizable(t, "files", storetest.Subject{
		Histories: 20,
		Start:     storetest.StartAboveJournal(openFollowed),
	})
}

func TestLinearizable_whenKilled(t *testing.T) {
	storetest.RunLinearizableKilled(t, "files, kills", openFollowed)
}
