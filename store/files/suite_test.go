package files_test

import (
	"testing"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// layout shows the suites' objects to people.
var layout = []files.Resource{
	{Prefix: "/pods", Dir: "core/pods", Namespaced: true, Status: true},
	{Prefix: "/elsewhere", Dir: "core/elsewhere"},
}

func openAt(_ testing.TB, dir string) (journal.Journal, error) {
	return files.Open(dir, files.Options{Resources: layout})
}

func openNew(t testing.TB) journal.Journal {
	j, err := openAt(t, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestStorage(t *testing.T) {
	storetest.RunStorage(t, "files", storetest.AboveJournal(openNew))
}

var traits = storetest.JournalTraits{
	NoHistory: "superseded records are kept in memory only, and clients list again after a restart",
}

func TestJournal(t *testing.T) { storetest.RunJournalWith(t, openAt, true, traits) }

func TestRestart(t *testing.T) { storetest.RunRestartWith(t, "files", openAt, traits) }

func TestAKilledProcessLosesNothing(t *testing.T) { storetest.RunCrashWith(t, "files", openAt, traits) }

// Histories with crashes need the events of what happened just before: these are gone
// with the history, so those are not checked here. TestAKilledProcessLosesNothing and
// TestAPowerCutLosesNothingAcknowledged are about crashes.
func TestLinearizable(t *testing.T) {
	storetest.RunLinearizable(t, "files", storetest.Subject{
		Histories: 20,
		Start:     storetest.StartAboveJournal(func() (journal.Journal, error) { return openAt(t, t.TempDir()) }),
	})
}
