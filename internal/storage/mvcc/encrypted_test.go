package mvcc_test

import (
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// stored returns the value at a key.
func stored(t *testing.T, core *mvcc.Core, key string) store.Value {
	t.Helper()
	for v, err := range core.Values(t.Context(), "/pods") {
		if err != nil {
			t.Fatal(err)
		}
		if v.Key == key {
			return v
		}
	}
	t.Fatalf("nothing is stored at %s", key)
	return store.Value{}
}

// overwrite puts data at a key, like an attacker with access to the storage but without a key.
func overwrite(t *testing.T, core *mvcc.Core, key string, data []byte) {
	t.Helper()
	v := stored(t, core, key)
	v.Data = data
	if _, err := core.Put(t.Context(), v, v.Revision); err != nil {
		t.Fatal(err)
	}
}

// The manipulations that each cipher detects are those of docs/howto/encryption.md.
func TestEncryption_manipulatedValues(t *testing.T) {
	for name, notices := range map[string]struct{ flipped, swapped bool }{
		"aescbc":    {},
		"secretbox": {flipped: true},
		"aesgcm":    {flipped: true, swapped: true},
	} {
		t.Run(name, func(t *testing.T) {
			core, _ := open(t, memory.New(), mvcc.Options{})
			resource := storetest.Pods("/pods")
			resource.Transformer = storetest.Ciphers(t)[name]
			pods, err := core.Open(resource)
			if err != nil {
				t.Fatal(err)
			}
			for _, pod := range []string{"flipped", "swapped", "well"} {
				create(t, pods, pod)
			}
			overwrite(t, core, key("swapped"), stored(t, core, key("well")).Data)
			flipped := slices.Clone(stored(t, core, key("flipped")).Data)
			flipped[len(flipped)/2] ^= 1
			overwrite(t, core, key("flipped"), flipped)

			if got := get(t, pods, "well"); got.Name != "well" {
				t.Errorf("got %v", got)
			}
			bad := 0
			for pod, noticed := range map[string]bool{"flipped": notices.flipped, "swapped": notices.swapped} {
				err := pods.Get(t.Context(), key(pod), storage.GetOptions{}, &example.Pod{})
				if !noticed {
					continue // detected by chance only
				}
				bad++
				corrupt := (*storage.StorageError)(nil)
				if !errors.As(err, &corrupt) || corrupt.Code != storage.ErrCodeCorruptObj || corrupt.Key != key(pod) {
					t.Errorf("get %s: %v", pod, err)
				}
			}
			if bad == 0 {
				return
			}
			_, err = listAt(pods, 0, storage.Everything)
			status := (*apierrors.StatusError)(nil)
			if !errors.As(err, &status) || status.ErrStatus.Reason != metav1.StatusReasonStoreReadError ||
				len(status.ErrStatus.Details.Causes) != bad {
				t.Errorf("list: %v", err)
			}
			for pod, noticed := range map[string]bool{"flipped": notices.flipped, "swapped": notices.swapped} {
				remove := func(opts storage.DeleteOptions) error {
					return pods.Delete(t.Context(), key(pod), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, opts)
				}
				if !noticed {
					continue
				}
				if remove(storage.DeleteOptions{}) == nil {
					t.Errorf("%s was deleted like any other", pod)
				}
				if err := remove(storage.DeleteOptions{ExpectTransformOrDecodeError: true}); err != nil {
					t.Errorf("delete %s: %v", pod, err)
				}
			}
			if list, err := listAt(pods, 0, storage.Everything); err != nil || len(list.Items) != 3-bad {
				t.Errorf("list: %v, %v", list.Items, err)
			}
		})
	}
}
