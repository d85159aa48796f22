package structural_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/annexapi/annex/internal/model/structural"
)

// BenchmarkFillMerged converts merged documents with 3, 60 and 600 fields into objects, as each apply does.
func BenchmarkFillMerged(b *testing.B) {
	v, err := structural.New(
		schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shelf"},
		reflect.TypeFor[shelf](),
		shelves,
		false,
	)
	if err != nil {
		b.Fatal(err)
	}
	for _, books := range []int{1, 30, 300} {
		var items []map[string]any
		for i := range books {
			items = append(items, map[string]any{"title": fmt.Sprint("title ", i), "pages": i})
		}
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "a"}, "wood": "oak", "books": items})
		if err != nil {
			b.Fatal(err)
		}
		doc := map[string]any{}
		if err := utiljson.Unmarshal(data, &doc); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("books=%d", books), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.FillMerged(doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
