package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// bigPods is the number of pods that exceeds the part of a list that is made early.
const bigPods = 10

func listAs(
	ctx context.Context,
	t *testing.T,
	pods storage.Interface,
	encoding *verbatim.Encoding,
	maker *verbatim.Maker,
) (verbatim.Items, error) {
	t.Helper()
	items, err := pods.(encodedLister).ListEncoded(
		ctx,
		"/pods/",
		storage.ListOptions{Recursive: true, Predicate: storage.Everything},
		&example.PodList{},
		encoding,
		maker,
	)
	if err == nil {
		t.Cleanup(func() { verbatim.Close(items) })
	}
	return items, err
}

// wholePod returns a verbatim.Row that writes a complete pod.
func wholePod(t *testing.T) verbatim.Row {
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
		read, err := object()
		if err != nil {
			return nil, err
		}
		return append(to, encodedPod(t, read.(*example.Pod))...), nil
	}
}

// Items are the same whether they are made early or late, from values in memory, in the journal, or encrypted.
func TestListEncoded_itemsOfALongList(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes lists of thousands of objects")
	}
	for name, options := range map[string]mvcc.Options{
		"from memory":      {ObjectCacheBytes: -1},
		"from the journal": {ObjectCacheBytes: -1, ValueBytes: -1},
		"encrypted":        {},
		"both":             {ValueBytes: -1},
	} {
		t.Run(name, func(t *testing.T) {
			options.Idle = true
			core, _ := open(t, newLedger(), options)
			resource := storetest.Pods("/pods")
			if name == "encrypted" || name == "both" {
				resource.Transformer = storetest.Ciphers(t)["aesgcm"]
			}
			pods := openAs(t, core, resource)
			largePods(t, pods, bigPods)
			all, err := listAt(pods, 0, storage.Everything)
			if err != nil {
				t.Fatal(err)
			}
			encoding := podEncoding()
			for as, maker := range map[string]*verbatim.Maker{"as they are": nil, "made": {Row: wholePod(t)},
				"made early": {Row: wholePod(t), Eager: true}, "sized": {Row: wholePod(t), Sizing: verbatim.NewSizing()}} {
				for range 2 { // the second time, their fits are known
					items, err := listAs(t.Context(), t, pods, encoding, maker)
					if err != nil || items.Len() != bigPods {
						t.Fatalf("%s: %v", as, err)
					}
					for i := range items.Len() {
						item, err := items.Append([]byte("> "), i)
						if want := "> " + encodedPod(t, &all.Items[i]); err != nil || string(item) != want {
							t.Fatalf("%s: item %d is %.100q, want %.100q: %v", as, i, item, want, err)
						}
						if size := items.Size(i); as == "sized" && size != len(item)-2 {
							t.Errorf("the size of item %d is %d, not %d", i, len(item)-2, size)
						}
					}
				}
			}
		})
	}
}

var errNotMade = errors.New("not made")

// An item that cannot be made fails the request while the list is short, and otherwise ends the list while it is
// written.
func TestListEncoded_itemThatCannotBeMade(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes lists of megabytes")
	}
	_, pods := open(t, memory.New(), mvcc.Options{Idle: true})
	largePods(t, pods, bigPods)
	for bad := range bigPods {
		row := func(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
			read, err := object()
			if err == nil && read.(*example.Pod).Name == fmt.Sprintf("pod-%03d", bad) {
				return nil, errNotMade
			}
			return append(to, make([]byte, 1<<20)...), err
		}
		for name, maker := range map[string]*verbatim.Maker{"early": {Row: row, Eager: true}, "sized": {Row: row, Sizing: verbatim.NewSizing()}} {
			items, err := listAs(t.Context(), t, pods, podEncoding(), maker)
			if refused := errors.Is(err, errNotMade); refused != (bad < 4 || name == "sized") {
				t.Errorf("%s: pod %d: the list has the error %v", name, bad, err)
			}
			if err != nil {
				continue
			}
			if _, err := items.Append(nil, bad); !errors.Is(err, errNotMade) {
				t.Errorf("%s: pod %d is written with the error %v", name, bad, err)
			}
		}
	}
}

// Sizes are remembered with the objects, for one sizing at a time, so that the next list makes each item once.
func TestListEncoded_sizesAreRemembered(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes lists of megabytes")
	}
	for name, options := range map[string]mvcc.Options{"from memory": {ObjectCacheBytes: -1},
		"from the journal": {ObjectCacheBytes: -1, ValueBytes: -1}} {
		t.Run(name, func(t *testing.T) {
			options.Idle = true
			core, pods := open(t, newLedger(), options)
			largePods(t, pods, bigPods)
			made, longer := 0, 0
			row := func(to []byte, object func() (runtime.Object, error), metadata verbatim.Fragment) ([]byte, error) {
				made++
				return wholePod(t)(append(to, make([]byte, longer)...), object, metadata)
			}
			encoding, one, other := podEncoding(), verbatim.NewSizing(), verbatim.NewSizing()
			list := func(as verbatim.Sizing, want int) verbatim.Items {
				t.Helper()
				made = 0
				items, err := listAs(t.Context(), t, pods, encoding, &verbatim.Maker{Row: row, Sizing: as})
				if err != nil || items.Len() != bigPods {
					t.Fatal(err)
				}
				if made != want {
					t.Errorf("%d items are made before the list is written, want %d", made, want)
				}
				return items
			}
			list(one, bigPods)
			for i, items := 0, list(one, 0); i < bigPods; i++ {
				if item, err := items.Append(nil, i); err != nil || len(item) != items.Size(i) {
					t.Errorf("item %d has %d bytes, not %d: %v", i, len(item), items.Size(i), err)
				}
			}
			list(other, bigPods)
			list(other, 0)
			list(one, bigPods)
			update := storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				object.(*example.Pod).Labels["changed"] = fmt.Sprint(core.Revision())
				return object, nil
			})
			if err := pods.GuaranteedUpdate(t.Context(), key("pod-003"), &example.Pod{}, false, nil, update, nil); err != nil {
				t.Fatal(err)
			}
			list(one, 1)

			// The announced length was wrong: the list ends there, and the next one is correct.
			items := list(one, 0)
			longer = 7
			if _, err := items.Append(nil, 2); err == nil {
				t.Error("an item of another size is written")
			}
			list(one, 1)
		})
	}
}

// The values of a list stay in the journal until the list is closed, or a compaction is requested.
func TestListEncoded_compaction(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes lists of megabytes")
	}
	core, pods := open(
		t,
		newLedger(),
		mvcc.Options{ObjectCacheBytes: -1, ValueBytes: -1, HotBytes: -1, Idle: true, History: mvcc.History{MinAge: -1, MinRevisions: -1}},
	)
	largePods(t, pods, bigPods)
	encoding := podEncoding()
	var want []string
	for range 2 { // the first time, their fits are determined
		items, err := listAs(t.Context(), t, pods, encoding, nil)
		if err != nil {
			t.Fatal(err)
		}
		want = nil
		for i := range items.Len() {
			item, err := items.Append(nil, i)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, string(item))
		}
		verbatim.Close(items)
	}
	change := func() {
		for i := range bigPods {
			update := storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				object.(*example.Pod).Labels["changed"] = fmt.Sprint(core.Revision())
				return object, nil
			})
			if err := pods.GuaranteedUpdate(t.Context(), key(fmt.Sprintf("pod-%03d", i)), &example.Pod{}, false, nil, update, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	items, err := listAs(t.Context(), t, pods, encoding, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := core.Revision()
	change()
	if err := core.CompactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if compacted := core.CompactedRevision(); compacted > at {
		t.Errorf("compaction has come to %d, past the list at %d", compacted, at)
	}
	for i := range items.Len() {
		if item, err := items.Append(nil, i); err != nil || string(item) != want[i] {
			t.Fatalf("item %d is %.100q, want %.100q: %v", i, item, want[i], err)
		}
	}
	verbatim.Close(items)
	if err := core.CompactHistory(t.Context()); err != nil || core.CompactedRevision() <= at {
		t.Errorf("compaction has come to %d after the list: %v", core.CompactedRevision(), err)
	}

	if items, err = listAs(t.Context(), t, pods, encoding, &verbatim.Maker{Row: podRow}); err != nil {
		t.Fatal(err)
	}
	change()
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	if _, err := items.Append(nil, bigPods-1); !errors.Is(err, store.ErrSnapshotLost) {
		t.Errorf("what was compacted is written with the error %v", err)
	}
}

// A list that is written object by object holds the memory of one object, not of all of them.
func TestListEncoded_memory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory for seconds")
	}
	_, pods := open(t, memory.New(), mvcc.Options{})
	largePods(t, pods, 4*bigPods)
	for name, maker := range map[string]*verbatim.Maker{"as they are": nil, "made": {Row: podRow},
		"made early": {Row: wholePod(t), Eager: true}, "sized": {Row: wholePod(t), Sizing: verbatim.NewSizing()}} {
		encoding := podEncoding()
		for _, selector := range []string{"", "even=true"} {
			b := budget.New(1 << 30)
			account := b.Account(budget.Caller{}, price)
			items, err := pods.(encodedLister).ListEncoded(
				budget.NewContext(t.Context(), account),
				"/pods/",
				storage.ListOptions{Recursive: true, Predicate: selecting(t, selector)},
				&example.PodList{},
				encoding,
				maker,
			)
			if err != nil {
				t.Fatal(err)
			}
			if used := b.Stats().Used; used < 10<<20 || used > 20<<20 {
				t.Errorf("%s, %q: %d MiB are held of %d objects of a MiB", name, selector, used>>20, items.Len())
			}
			verbatim.Close(items)
			account.Close()
		}
	}
}

// A long list leaves few of its decoded objects in the cache: six of one MiB fill its share of 16 MiB, because an
// object counts three times its encoded size. Two more show the bound; each costs seconds under the race detector.
func TestListEncoded_cache(t *testing.T) {
	l := newLedger()
	_, pods := open(t, l, mvcc.Options{Idle: true})
	largePods(t, pods, 8)
	for name, maker := range map[string]*verbatim.Maker{"looked at": nil, "sized": {Row: wholePod(t), Sizing: verbatim.NewSizing()}} {
		core, pods := open(t, l.reopen(), mvcc.Options{Idle: true}) // nothing is decoded in it
		items, err := listAs(t.Context(), t, pods, podEncoding(), maker)
		if err != nil {
			t.Fatal(err)
		}
		for i := range items.Len() {
			if _, err := items.Append(nil, i); err != nil {
				t.Fatal(err)
			}
		}
		if kept := core.Stats().DecodedBytes; kept < 12<<20 || kept > 20<<20 {
			t.Errorf("%s: %d MiB of decoded objects are kept", name, kept>>20)
		}
	}
}
