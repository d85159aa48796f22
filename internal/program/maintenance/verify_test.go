package maintenance_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/storetest"
)

// An undecodable object is damage while it exists. After its deletion, nothing needs to be restored.
func TestVerify_deletedUndecodable(t *testing.T) {
	c := core(t)
	put(t, c, store.Value{Key: "/pods/ns/bad", Data: []byte(`{"kind":"Pod","apiVersion":"v1","metadata":7}`)})
	resource := storetest.Pods("/pods")
	local := &maintenance.Local{
		Storages: []maintenance.Storage{{Name: "memory", Backend: c, Records: c.Scan}},
		Resources: []maintenance.Resource{{
			Resource: schema.GroupResource{Resource: "pods"}, Prefix: "/pods", In: "memory",
			Codec: resource.Codec, New: func() runtime.Object { return &example.Pod{} },
		}},
	}
	verify := func() maintenance.Verified {
		t.Helper()
		verified, err := local.Verify(t.Context(), func(maintenance.Finding) {})
		if err != nil {
			t.Fatal(err)
		}
		return verified
	}
	if verified := verify(); verified.Damages != 1 || verified.Warnings != 0 {
		t.Errorf("while it is there: %+v", verified)
	}
	// If only its type differs, it can be read, and therefore deleted.
	resource.Codec = anything{resource.Codec}
	pods, err := c.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(
		t.Context(),
		"/pods/ns/bad",
		&example.Pod{},
		nil,
		storage.ValidateAllObjectFunc,
		nil,
		storage.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	if verified := verify(); verified.Damages != 0 || verified.Warnings != 1 {
		t.Errorf("when it has been deleted: %+v", verified)
	}
}

// anything decodes every value into an empty object.
type anything struct{ runtime.Codec }

func (anything) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return &example.Pod{}, nil, nil
}
