package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// shelf returns the shelf of a journal, and skips the test if it has none.
func (j *journalUnderTest) shelf(t *testing.T) journal.Shelf {
	t.Helper()
	s, ok := j.Journal.(journal.Shelf)
	if !ok {
		t.Skip("the journal has no shelf")
	}
	return s
}

// shelved is the content of a shelf between two keys, as text.
func shelved(t *testing.T, s journal.Shelf, from, below string, backwards bool) string {
	t.Helper()
	var all []string
	err := s.ScanShelf(from, below, backwards, func(key string, value []byte) bool {
		all = append(all, fmt.Sprintf("%s=%s", key, value))
		return true
	})
	if err != nil {
		t.Fatalf("scan the shelf: %v", err)
	}
	return strings.Join(all, " ")
}

func edit(key, value string) journal.ShelfEdit {
	if value == "" {
		return journal.ShelfEdit{Key: key}
	}
	return journal.ShelfEdit{Key: key, Value: []byte(value)}
}

func shelvesInOrder(t *testing.T, j *journalUnderTest) {
	s := j.shelf(t)
	j.fill(t, journal.Record{Revision: 2, Key: "/a", Value: []byte("1"), Committed: time.Unix(1, 0).UTC()},
		journal.Record{Revision: 3, Key: "/a", Value: []byte("2"), Previous: 2, Committed: time.Unix(2, 0).UTC(), User: "anna"})
	err := s.TrimAndShelve(3, []uint64{2}, []journal.ShelfEdit{edit("k/a\x002", "old"), edit("k/b", "B"), edit("m", "M"), edit("k/a", "A")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(2); err == nil {
		t.Error("the moved record is still there")
	}
	for _, scan := range []struct {
		from, below string
		backwards   bool
		want        string
	}{
		{"", "z", false, "k/a=A k/a\x002=old k/b=B m=M"}, {"", "z", true, "m=M k/b=B k/a\x002=old k/a=A"},
		{"k/a", "k/b", false, "k/a=A k/a\x002=old"}, {"k/a\x00", "k/b", true, "k/a\x002=old"}, {"k/b", "m", true, "k/b=B"}, {"n", "z", false, ""},
	} {
		if got := shelved(t, s, scan.from, scan.below, scan.backwards); got != scan.want {
			t.Errorf("from %q below %q: %q, want %q", scan.from, scan.below, got, scan.want)
		}
	}
	if err := s.TrimAndShelve(3, nil, []journal.ShelfEdit{edit("k/b", ""), edit("absent", ""), edit("m", "N")}); err != nil {
		t.Fatal(err)
	}
	if got, want := shelved(t, s, "", "z", false), "k/a=A k/a\x002=old m=N"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for key, want := range map[string]string{"m": "N", "k/b": "", "x": ""} {
		if got, err := s.ReadShelf(key); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	n := 0
	if err := s.ScanShelf("", "z", false, func(string, []byte) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("a scan that ends at once: %d, %v", n, err)
	}
	if r, err := s.Read(3); err != nil || r.User != "anna" {
		t.Errorf("the user is %q, %v", r.User, err)
	}
}

func keepsShelf(t *testing.T, j *journalUnderTest) {
	s := j.shelf(t)
	j.fill(t, journal.Record{Revision: 2, Key: "/a", Value: []byte("1"), Committed: time.Unix(1, 0).UTC(), User: "anna"},
		journal.Record{Revision: 3, Key: "/a", Deleted: true, Previous: 2, Committed: time.Unix(2, 0).UTC(), User: "bert"})
	if err := s.TrimAndShelve(2, nil, []journal.ShelfEdit{edit("k", "v"), edit("l", "w")}); err != nil {
		t.Fatal(err)
	}
	records, compacted := j.reopen(t)
	if len(records) != 2 || compacted != 2 || records[0].User != "anna" || records[1].User != "bert" || string(records[0].Value) != "1" {
		t.Errorf("replayed %v, compacted %d", records, compacted)
	}
	if got := shelved(t, j.shelf(t), "", "z", false); got != "k=v l=w" {
		t.Errorf("the shelf is %q", got)
	}
}
