package objects_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/objects"
)

func TestIsNil(t *testing.T) {
	var missing *metav1.PartialObjectMetadata
	var object runtime.Object = missing
	if !objects.IsNil(nil) || !objects.IsNil(object) {
		t.Error("nil is not told")
	}
	for _, v := range []any{&metav1.PartialObjectMetadata{}, metav1.ObjectMeta{}, 0} {
		if objects.IsNil(v) {
			t.Errorf("%T is said to be nil", v)
		}
	}
}
