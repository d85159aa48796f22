package registry

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Attributes take as long for one field as for all, and there are up to eight fields.
func TestFieldsOf_severalIndexes_computesOnce(t *testing.T) {
	asked := 0
	attributes := func(object runtime.Object) (labels.Set, fields.Set, error) {
		asked++
		set := fields.Set{"metadata.name": "x", "metadata.namespace": "y"}
		for i := range 8 {
			set[fmt.Sprint("spec.f", i)] = fmt.Sprint(object.(*unstructured.Unstructured).GetName(), i)
		}
		return nil, set, nil
	}
	x := indexesOf(&unstructured.Unstructured{}, attributes)
	if len(x.fields) != 8 || len(*x.indexers) != 8 || len(x.triggers) != 1 {
		t.Fatalf("%d fields, %d indexers, %d triggers, want 8, 8 and 1", len(x.fields), len(*x.indexers), len(x.triggers))
	}
	const objects = 100
	asked = 0
	for i := range objects {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetName(fmt.Sprint("o", i, "-"))
		for j, field := range x.fields {
			got, err := (*x.indexers)[storage.FieldIndex(field)](object)
			if want := fmt.Sprint("o", i, "-", j); err != nil || len(got) != 1 || got[0] != want {
				t.Fatalf("%s of %s is %v, %v, want %s", field, object.GetName(), got, err, want)
			}
		}
	}
	if asked > 4*objects { // pools drop items under the race detector
		t.Errorf("the fields of %d objects were found out %d times", objects, asked)
	}
}

func TestIndexesOf_attributesFail_isEmpty(t *testing.T) {
	attributes := func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, fmt.Errorf("not to be told") }
	if x := indexesOf(&unstructured.Unstructured{}, attributes); x.indexers != nil || x.triggers != nil || x.fields != nil {
		t.Errorf("they are %v", x)
	}
}
