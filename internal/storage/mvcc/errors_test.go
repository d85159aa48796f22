package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// brokenTransformer cannot decrypt its own output.
type brokenTransformer struct{ err error }

func (x brokenTransformer) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}

func (x brokenTransformer) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, false, x.err
}

// TestUnreadable_readersAndDeletes checks the error of every reader of an unreadable object, and who may delete it.
func TestUnreadable_readersAndDeletes(t *testing.T) {
	broken := errors.New("broken")
	slow := fmt.Errorf("key server: %w", context.DeadlineExceeded)
	isStoreReadError := func(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonStoreReadError }
	succeeds := func(err error) bool { return err == nil }
	tests := []struct {
		name         string
		unsafe       bool // the feature AllowUnsafeMalformedObjectDeletion
		err          error
		get, list    func(error) bool
		unsafeDelete func(error) bool
		event        string // of a watch
	}{
		{"corrupt", true, broken, storage.IsCorruptObject, isStoreReadError, succeeds, "ERROR StorageReadError"},
		{
			"corrupt, feature off",
			false,
			broken,
			storage.IsInternalError,
			storage.IsInternalError,
			storage.IsInternalError,
			"ERROR InternalError",
		},
		{"not readable now", true, slow, storage.IsInternalError, storage.IsInternalError, storage.IsInternalError, "ERROR InternalError"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, test.unsafe)
			core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{ObjectCacheBytes: -1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = core.Close() }()
			resource := storetest.Pods("/pods")
			resource.Transformer = brokenTransformer{test.err}
			pods, err := core.Open(resource)
			if err != nil {
				t.Fatal(err)
			}
			create(t, pods, "a")
			if err := pods.Get(t.Context(), key("a"), storage.GetOptions{}, &example.Pod{}); !test.get(err) {
				t.Errorf("get: %T %v", err, err)
			}
			if _, err := listAt(pods, 0, storage.Everything); !test.list(err) {
				t.Errorf("list: %T %v", err, err)
			}
			if _, err := tryAnnotate(t.Context(), pods, "a", "changed"); !storage.IsInternalError(err) {
				t.Errorf("update: %T %v", err, err)
			}
			remove := func(unsafe bool) error {
				return pods.Delete(t.Context(), key("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
					storage.DeleteOptions{ExpectTransformOrDecodeError: unsafe})
			}
			if err := remove(false); !storage.IsInternalError(err) {
				t.Errorf("delete: %T %v", err, err)
			}
			if err := remove(true); !test.unsafeDelete(err) {
				t.Errorf("unsafe delete: %T %v", err, err)
			}
			from := uint64(1)
			if test.event == "ERROR StorageReadError" {
				from = 2 // the creation cannot be decoded either, but results in another error
			}
			expect(t, watchFrom(t, pods, from, storage.Everything), test.event)
		})
	}
}
