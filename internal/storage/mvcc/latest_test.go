package mvcc_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
)

func TestValueBytes_exceeded_readsJournal(t *testing.T) {
	l := newLedger()
	core, pods := open(t, l, mvcc.Options{ValueBytes: 3000, ObjectCacheBytes: -1})
	for i := range 40 {
		create(t, pods, fmt.Sprintf("pod-%02d", i))
	}
	kept := core.Stats().ValueBytes
	if kept == 0 || kept > 3000 {
		t.Errorf("%d bytes of values are kept, the limit is 3000", kept)
	}
	for _, again := range []bool{false, true} {
		if again {
			core, pods = open(t, l.reopen(), mvcc.Options{ValueBytes: 3000, ObjectCacheBytes: -1})
			if kept := core.Stats().ValueBytes; kept == 0 || kept > 3000 {
				t.Errorf("%d bytes of values are kept after a restart", kept)
			}
		}
		list, err := listAt(pods, 0, storage.Everything)
		if err != nil || len(list.Items) != 40 {
			t.Fatalf("%d objects: %v", len(list.Items), err)
		}
		if got := get(t, pods, "pod-00"); got.Spec.NodeName != "node-1" {
			t.Errorf("the oldest object is %v", got)
		}
		annotate(t, pods, "pod-00", "changed")
		remove(t, pods, "pod-01")
		create(t, pods, "pod-01")
	}
	if l.reads == 0 {
		t.Error("nothing was read from the journal")
	}
}

// A few large values would displace very many small ones.
func TestValueBytes_largeValues(t *testing.T) {
	const most = 64 << 20 / 16
	for name, resident := range map[string]bool{"in a journal on disk": false, "in a journal in memory": true} {
		t.Run(name, func(t *testing.T) {
			core, pods := open(t, newLedger(), mvcc.Options{ValueBytes: 64 << 20, Resident: resident, Idle: true})
			create(t, pods, "small")
			note := strings.Repeat("x", 100<<10)
			const count = 100
			for i := range count {
				name := fmt.Sprintf("pod-%02d", i)
				create(t, pods, name)
				annotate(t, pods, name, note)
			}
			kept := core.Stats().ValueBytes
			if all := int64(count * len(note)); resident && kept < all || !resident && (kept > most+1<<20 || kept < most/2) {
				t.Errorf("%d bytes of %d are kept", kept, all)
			}
			encoding := podEncoding()
			for range 2 {
				opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
				items, err := pods.(encodedLister).ListEncoded(t.Context(), "/pods/", opts, &example.PodList{}, encoding, nil)
				if err != nil || items.Len() != count+1 {
					t.Fatal(err)
				}
				for i := range count {
					pod := get(t, pods, fmt.Sprintf("pod-%02d", i))
					if written, err := items.Append(nil, i); err != nil || string(written) != encodedPod(t, pod) {
						t.Fatalf("%s is written as %.200s, %v", pod.Name, written, err)
					}
				}
			}
		})
	}
}

// A record that cannot be read is damage, even where the history has been compacted.
func TestGet_lostRecord_isDamage(t *testing.T) {
	l := newLedger()
	core, pods := open(t, l, mvcc.Options{ValueBytes: -1, ObjectCacheBytes: -1})
	revision := revisionOf(t, create(t, pods, "lost"))
	create(t, pods, "other")
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	delete(l.records, revision)
	l.mu.Unlock()
	err := pods.Get(t.Context(), key("lost"), storage.GetOptions{}, &example.Pod{})
	if err == nil || apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "read the journal") {
		t.Errorf("got %v", err)
	}
	if _, err := listAt(pods, 0, storage.Everything); err == nil || apierrors.IsResourceExpired(err) {
		t.Errorf("a list says %v", err)
	}
}
