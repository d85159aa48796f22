package mvcc_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store/storetest"
)

// Values that fit the encoding are decoded for the first list only, even if no decoded objects are kept.
func TestListEncoded_fittingValues_areNotDecoded(t *testing.T) {
	for name, options := range map[string]mvcc.Options{
		"from memory":      {ObjectCacheBytes: -1},
		"from the journal": {ObjectCacheBytes: -1, ValueBytes: -1},
	} {
		t.Run(name, func(t *testing.T) {
			options.Clock, options.Idle = newClock(), true
			core, _ := open(t, newLedger(), options)
			var decoded atomic.Int64
			resource := storetest.Pods("/pods")
			resource.Codec = parallelCountingCodec{resource.Codec, &decoded}
			pods := openAs(t, core, resource)
			colored(t, pods, 100, 10)
			encoding := podEncoding()
			list := func(selector string) {
				t.Helper()
				decoded.Store(0)
				opts := storage.ListOptions{Recursive: true, Predicate: selecting(t, selector)}
				fragments, err := pods.(encodedLister).ListEncoded(t.Context(), "/pods/", opts, &example.PodList{}, encoding, nil)
				if err != nil || fragments.Len() != 100 && selector == "" {
					t.Fatalf("%d objects: %v", fragments.Len(), err)
				}
			}
			list("")
			first := decoded.Load()
			if list(""); first != 100 || decoded.Load() != 0 {
				t.Errorf("%d were decoded for the first list, and %d for the second", first, decoded.Load())
			}
			one, err := core.Open(resource)
			if err != nil {
				t.Fatal(err)
			}
			decoded.Store(0)
			whole := one.(encodedLister).GetEncoded(t.Context(), key("pod-0007"), encoding).Whole()
			pod := get(t, pods, "pod-0007")
			if want := podHead + encodedPod(t, pod)[1:] + "\n"; string(whole) != want || decoded.Load() != 1 {
				t.Errorf("one is written as %s after decoding %d, want %s", whole, decoded.Load()-1, want)
			}
			if list("color=color-1"); decoded.Load() != 100 {
				t.Errorf("%d were decoded to find out what is selected", decoded.Load())
			}
			encoding = podEncoding() // as for another server
			if list(""); decoded.Load() != 100 {
				t.Errorf("%d were decoded for another encoding", decoded.Load())
			}

			for _, known := range []bool{false, true} {
				if !known {
					encoding = podEncoding()
				}
				decoded.Store(0)
				opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
				rows, err := pods.(encodedLister).ListEncoded(t.Context(), "/pods/", opts, &example.PodList{}, encoding, &verbatim.Maker{Row: podRow})
				if err != nil || rows.Len() != 100 {
					t.Fatal(err)
				}
				if read := decoded.Load(); (read == 0) != known {
					t.Errorf("%d were decoded before rows were written of what is known: %t", read, known)
				}
				for i := range rows.Len() {
					row, err := rows.Append(nil, i)
					if err != nil || !strings.HasPrefix(string(row), fmt.Sprintf("pod-%04d at ", i)) || !strings.Contains(string(row), ` with {"name":`) {
						t.Fatalf("row %d is %s: %v", i, row, err)
					}
				}
			}
		})
	}
}

// The result of a label index needs no decoding.
func TestListEncoded_byLabelIndex_isNotDecoded(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1, LabelObjects: 1, Clock: newClock(), Idle: true})
	var decoded atomic.Int64
	resource := storetest.Pods("/pods")
	resource.Codec = parallelCountingCodec{resource.Codec, &decoded}
	pods := openAs(t, core, resource)
	colored(t, pods, 100, 10)
	encoding := podEncoding()
	list := func(what, selector string, decodes int64) {
		t.Helper()
		decoded.Store(0)
		opts := storage.ListOptions{Recursive: true, Predicate: selecting(t, selector)}
		list := &example.PodList{}
		items, err := pods.(encodedLister).ListEncoded(t.Context(), "/pods/", opts, list, encoding, nil)
		if err != nil || items.Len() != 10 || decoded.Load() != decodes {
			t.Fatalf("%s: %d objects, %d decoded, want 10 and %d: %v", what, items.Len(), decoded.Load(), decodes, err)
		}
		for i := range items.Len() {
			pod := get(t, pods, fmt.Sprintf("pod-%04d", 10*i+1))
			item, err := items.Append(nil, i)
			if want := encodedPod(t, pod); err != nil || string(item) != want {
				t.Fatalf("%s: item %d is %s, want %s: %v", what, i, item, want, err)
			}
		}
	}
	list("the first list", "color=color-1", 100)
	list("the list that makes the index", "color=color-1", 100)
	list("by the index", "color=color-1", 0)
	list("by several values", "color in (color-1,none)", 0)
	list("by something else, too", "color=color-1,color!=none", 10)
	annotate(t, pods, "pod-0011", "changed")
	list("after a change", "color=color-1", 2) // for the index, and for the encoding
	list("by the index that knows it", "color=color-1", 0)
}

// The fit of a value may be known when the value itself can no longer be read.
func TestListEncoded_unreadableValue_fails(t *testing.T) {
	l := newLedger()
	_, pods := open(t, l, mvcc.Options{ObjectCacheBytes: -1, HotBytes: -1, Idle: true})
	before := revisionOf(t, create(t, pods, "lost"))
	encoding := podEncoding()
	list := func(revision uint64) (verbatim.Items, error) {
		opts := storage.ListOptions{
			Recursive:            true,
			Predicate:            storage.Everything,
			ResourceVersion:      fmt.Sprint(revision),
			ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		}
		return pods.(encodedLister).ListEncoded(t.Context(), "/pods/", opts, &example.PodList{}, encoding, nil)
	}
	if _, err := list(before); err != nil {
		t.Fatal(err)
	}
	annotate(t, pods, "lost", "changed")
	if items, err := list(before); err != nil || items.Len() != 1 {
		t.Fatalf("the version before: %v, %v", items, err)
	}
	l.mu.Lock()
	delete(l.records, before)
	l.mu.Unlock()
	if items, err := list(before); err == nil || !strings.Contains(err.Error(), "read the journal") {
		t.Errorf("got %v, %v", items, err)
	}
}

// Encrypted values never fit an encoding.
func TestListEncoded_transformed_isDecoded(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{Idle: true})
	resource := storetest.Pods("/pods")
	resource.Transformer = storetest.Ciphers(t)["aesgcm"]
	if resource.Transformer == nil {
		t.Fatal("there is no such cipher")
	}
	pods := openAs(t, core, resource)
	colored(t, pods, 3, 1)
	encoding := podEncoding()
	for range 2 {
		if fragment := pods.(encodedLister).GetEncoded(t.Context(), key("pod-0001"), encoding); !fragment.IsZero() {
			t.Errorf("it is written as %s", fragment.Whole())
		}
		fragments, err := pods.(encodedLister).ListEncoded(
			t.Context(),
			"/pods/",
			storage.ListOptions{Recursive: true, Predicate: storage.Everything},
			&example.PodList{},
			encoding,
			nil,
		)
		if err != nil || fragments.Len() != 3 {
			t.Fatalf("%d objects: %v", fragments.Len(), err)
		}
		list, err := listAt(pods, 0, storage.Everything)
		if err != nil {
			t.Fatal(err)
		}
		for i := range fragments.Len() {
			written, err := fragments.Append(nil, i)
			if want := encodedPod(t, &list.Items[i]); err != nil || string(written) != want {
				t.Errorf("written as %s, want %s; %v", written, want, err)
			}
		}
	}
}

// The response of a write is encoded while the journal syncs, and set once the write is durable.
func TestWrite_encodedResponse(t *testing.T) {
	encoding := podEncoding()
	broken := verbatim.NewEncoding([]byte(podHead), len(podHead), func(runtime.Object) ([]byte, error) { panic("a mistake") }, nil)
	tests := []struct {
		name     string
		encoding *verbatim.Encoding
		fails    bool // the journal fails
		answer   bool
	}{
		{"durable", encoding, false, true},
		{"lost", encoding, true, false},
		{"a panic leaves no write unsettled", broken, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger()
			_, pods := open(t, l, mvcc.Options{Idle: true})
			if test.fails {
				l.failWait = 2
			}
			result := &verbatim.WriteResult{Encoding: test.encoding}
			out := &example.Pod{}
			err := pods.Create(verbatim.WithWriteResult(t.Context(), result), key("pod"), samplePod("pod"), out, 0)
			if (err != nil) != test.fails {
				t.Fatal(err)
			}
			if test.fails {
				out.ResourceVersion = "2"
			}
			answer := result.JSON(out)
			if (answer != nil) != test.answer {
				t.Errorf("it says %q", answer)
			}
			if want := podHead + encodedPod(t, out)[1:] + "\n"; test.answer && string(answer) != want {
				t.Errorf("it says %s, want %s", answer, want)
			}
			if !test.fails {
				annotate(t, pods, "pod", "changed") // would wait for an unsettled write
			}
		})
	}
}

// A value that is known to fit is deleted without decoding it, unless the object is requested or has finalizers.
func TestDelete_fittingValue_isNotDecoded(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1})
	var decoded atomic.Int64
	resource := storetest.Pods("/pods")
	resource.Codec = parallelCountingCodec{resource.Codec, &decoded}
	pods := openAs(t, core, resource)
	encoding := podEncoding()
	for _, name := range []string{"known", "asked", "held", "unlooked"} {
		pod := samplePod(name)
		pod.UID = types.UID("uid-of-" + name)
		if name == "held" {
			pod.Finalizers = []string{"example.com/hold"}
		}
		ctx := t.Context()
		if name != "unlooked" {
			ctx = verbatim.WithWriteResult(ctx, &verbatim.WriteResult{Encoding: encoding})
		}
		if err := pods.Create(ctx, key(name), pod, &example.Pod{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name    string
		decodes int64
	}{{"known", 0}, {"asked", 1}, {"held", 1}, {"unlooked", 1}} {
		decoded.Store(0)
		err := pods.Delete(
			objects.WithDeletedUnread(t.Context()),
			key(test.name),
			&example.Pod{},
			&storage.Preconditions{},
			func(_ context.Context, object runtime.Object) error {
				unread := object.(*objects.Unread)
				if unread.Name != test.name || unread.UID != types.UID("uid-of-"+test.name) || unread.Held != (test.name == "held") {
					t.Errorf("%s: shown is %s, %s, held %t", test.name, unread.Name, unread.UID, unread.Held)
				}
				if test.name != "asked" {
					return nil
				}
				pod := unread.DeepCopyObject().(*example.Pod)
				if pod.Name != test.name || pod.ResourceVersion == "" || unread.Err() != nil {
					t.Errorf("read was %+v: %v", pod.ObjectMeta, unread.Err())
				}
				return nil
			},
			nil,
			storage.DeleteOptions{},
		)
		if err != nil || decoded.Load() != test.decodes {
			t.Errorf("%s: %d were decoded, want %d: %v", test.name, decoded.Load(), test.decodes, err)
		}
	}
}
