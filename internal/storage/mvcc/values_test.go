package mvcc_test

import (
	"context"
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
	for _, name := range []string{"a", "b", "c"} {
		create(t, pods, name)
	}
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
	if len(got) != 2 || got[1].Key != key("b") || got[1].Revision != revisionOf(t, get(t, pods, "b")) {
		t.Errorf("got %v", got)
	}
}
