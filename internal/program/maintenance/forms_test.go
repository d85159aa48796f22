package maintenance_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// strict is a codec for which a field has changed its type.
type strict struct{ runtime.Codec }

func (s strict) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	switch {
	case strings.Contains(string(data), "bad"):
		return nil, nil, errors.New("spec.size: a string where a number is expected")
	case strings.Contains(string(data), "worse"):
		panic("a conversion's")
	}
	return s.Codec.Decode(data, defaults, into)
}

func TestForms_undecodableAndUnserved(t *testing.T) {
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	put := func(key, version string) {
		t.Helper()
		data := fmt.Sprintf(`{"kind":"Pod","apiVersion":%q,"metadata":{"name":%q}}`, version, key)
		if _, err := core.Put(context.Background(), store.Value{Key: key, Data: []byte(data)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		put(fmt.Sprint("/pods/ns/a", i), "v1")
	}
	put("/pods/ns/bad", "v1beta1")
	put("/pods/ns/good", "v1beta1")
	put("/pods/ns/worse", "v1alpha1")
	put("/example.com/cats/ns/x", "example.com/v1")
	put("/example.com/cats/ns/y", "example.com/v1")

	resource := storetest.Pods("/pods")
	local := &maintenance.Local{
		Storages: []maintenance.Storage{{Name: "memory", Backend: core}},
		Resources: []maintenance.Resource{{
			Resource: schema.GroupResource{Resource: "pods"}, Prefix: "/pods", In: "memory",
			Codec: strict{resource.Codec}, New: func() runtime.Object { return &example.Pod{} },
			Form: convert.Form{GroupVersionKind: examplev1.SchemeGroupVersion.WithKind("Pod"), MediaType: runtime.ContentTypeJSON},
		}},
	}
	all, unserved, err := local.Forms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	problems := map[string]string{}
	for _, c := range all[0].Counts {
		problems[c.Version] = c.Problem
	}
	if got := problems["v1beta1"]; got != "/pods/ns/bad: spec.size: a string where a number is expected" {
		t.Errorf("the problem with v1beta1 is %q", got)
	}
	if got := problems["v1alpha1"]; got != "/pods/ns/worse: panic: a conversion's" {
		t.Errorf("the problem with v1alpha1 is %q", got)
	}
	if want := []maintenance.Unserved{{Storage: "memory", Prefix: "/example.com/cats", Objects: 2}}; !slices.Equal(unserved, want) {
		t.Errorf("unserved is %v, want %v", unserved, want)
	}
	local.Default, local.Custom = "memory", func(context.Context, string, store.Backend) ([]maintenance.Resource, error) {
		return []maintenance.Resource{{Prefix: "/example.com/cats"}}, &maintenance.UnreadableDefinition{Key: "/defs/dogs",
			Err: errors.New("garbage")}
	}
	counted, unserved, err := local.Forms(t.Context())
	if !errors.As(err, new(*maintenance.UnreadableDefinition)) || !strings.Contains(err.Error(), "the definition /defs/dogs cannot be "+
		"read") {
		t.Errorf("an unreadable definition: %v", err)
	}
	if len(counted) != len(all) || len(unserved) != 0 {
		t.Errorf("beside an unreadable definition: %v, %v", counted, unserved)
	}
	local.Custom = func(context.Context, string, store.Backend) ([]maintenance.Resource, error) {
		return nil, errors.New("the disk is gone")
	}
	if _, _, err := local.Forms(t.Context()); err == nil || err.Error() != "the disk is gone" {
		t.Errorf("an error of the storage: %v", err)
	}
	local.Custom = nil
	stats, err := local.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range stats[0].Resources {
		if r.Resource == "pods" && !slices.ContainsFunc(r.StoredAs, func(c maintenance.FormCount) bool { return c.Problem != "" }) {
			t.Errorf("the figures do not say so: %+v", r)
		}
	}
}
