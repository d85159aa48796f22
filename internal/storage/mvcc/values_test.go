package mvcc_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func TestValues_storedBytes(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	storetest.CheckValues(t, core, pods)
}

func TestValues_replacedAndCompacted(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{HotBytes: -1})
	const before = 64 // are read at once
	for i := range before {
		create(t, pods, fmt.Sprintf("a-%d", i))
	}
	create(t, pods, "b")
	create(t, pods, "c")
	var got []store.Value
	for stored, err := range core.Values(t.Context(), "/pods") {
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			annotate(t, pods, "b", "replaced")
			remove(t, pods, "c")
			if err := core.Compact(context.Background(), core.Revision()); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, stored)
	}
	if len(got) != before+1 || got[before].Key != key("b") || got[before].Revision != revisionOf(t, get(t, pods, "b")) {
		t.Errorf("got %d, at last %s at revision %d", len(got), got[len(got)-1].Key, got[len(got)-1].Revision)
	}
}
