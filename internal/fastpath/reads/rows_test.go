package reads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// printer returns the table that a test case describes.
type printer struct {
	cells      []any
	conditions []metav1.TableRowCondition
	rows       int
	object     runtime.Object // replaces the printed object
	err        error
}

func (p printer) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	if p.object != nil {
		object = p.object
	}
	table := &metav1.Table{}
	for range p.rows {
		table.Rows = append(table.Rows, metav1.TableRow{Cells: p.cells, Conditions: p.conditions, Object: runtime.RawExtension{Object: object}})
	}
	return table, p.err
}

func printed() *v1.Widget {
	return &v1.Widget{ObjectMeta: metav1.ObjectMeta{
		Name: "w", ResourceVersion: "7", UID: "u", CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		Annotations:   map[string]string{"text": "<&> \u2028\\\"}{"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "<m>", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
	}}
}

// A row is encoded exactly as json.Marshal encodes it in a whole table.
func TestRowsAs_encodesAsUpstream(t *testing.T) {
	other := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	marked := printed()
	marked.Annotations[metav1.InitialEventsAnnotationKey] = "true"
	for name, p := range map[string]printer{
		"no cells": {rows: 1},
		"of all kind": {rows: 1, cells: []any{nil, true, false, int64(math.MinInt64), 1.5, "plain", "", "<&>", "tab\t", "del\x7f", "ä\u2028",
			"\xff", `"\`, []any{"a"}, map[string]any{"b": 1}}},
		"conditions": {rows: 1, cells: []any{"a"},
			conditions: []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: "<done>"}}},
		"another one": {rows: 1, cells: []any{"a"}, object: other},
		"marked":      {rows: 1, cells: []any{"a"}, object: marked},
	} {
		for _, version := range []string{"v1", "v1beta1"} {
			for _, include := range []string{"", "None", "Metadata"} {
				t.Run(fmt.Sprintf("%s %s %q", name, version, include), func(t *testing.T) {
					wanted := schema.GroupVersionKind{Group: "meta.k8s.io", Version: version, Kind: "Table"}
					row := rowsAs(httptest.NewRequest("GET", "/?includeObject="+include, nil), &wanted, p)
					object := runtime.Object(printed())
					if p.object != nil {
						object = p.object
					}
					partial := &metav1.PartialObjectMetadata{
						TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/" + version},
					}
					switch o := object.(type) {
					case *v1.Widget:
						partial.ObjectMeta = o.ObjectMeta
					case *metav1.PartialObjectMetadata:
						partial.ObjectMeta = o.ObjectMeta
					}
					tableRow := metav1.TableRow{Cells: p.cells, Conditions: p.conditions, Object: runtime.RawExtension{Object: partial}}
					if include == "None" && p.object != runtime.Object(marked) {
						tableRow.Object.Object = nil
					}
					want, err := json.Marshal(tableRow)
					if err != nil {
						t.Fatal(err)
					}
					metadata, err := json.Marshal(printed().ObjectMeta)
					if err != nil {
						t.Fatal(err)
					}
					for _, known := range []verbatim.Fragment{{}, verbatim.NewFragment(metadata)} {
						got, err := row([]byte("["), func() (runtime.Object, error) { return printed(), nil }, known)
						if err != nil || string(got) != "["+string(want) {
							t.Errorf("got %s, want %s; %v", got, want, err)
						}
					}
				})
			}
		}
	}
}

// A metadata list as protobuf, put together item by item, equals the output of upstream's encoder, with the field
// order of each version.
func TestMessagesAs_encodesAsUpstream(t *testing.T) {
	for version, c := range map[string]struct {
		in   format
		list func(items ...metav1.PartialObjectMetadata) runtime.Object
	}{
		"v1": {asProtobuf, func(items ...metav1.PartialObjectMetadata) runtime.Object {
			return &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: items}
		}},
		"v1beta1": {asBetaProtobuf, func(items ...metav1.PartialObjectMetadata) runtime.Object {
			return &metav1beta1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: items}
		}},
	} {
		t.Run(version, func(t *testing.T) {
			encode := func(list runtime.Object) []byte {
				list.GetObjectKind().
					SetGroupVersionKind(schema.GroupVersionKind{Group: "meta.k8s.io", Version: version, Kind: "PartialObjectMetadataList"})
				var encoded bytes.Buffer
				if err := protobuf.NewSerializer(nil, nil).Encode(list, &encoded); err != nil {
					t.Fatal(err)
				}
				return encoded.Bytes()
			}
			wanted := schema.GroupVersionKind{Group: "meta.k8s.io", Version: version, Kind: "PartialObjectMetadataList"}
			row := messagesAs(&wanted, c.in)
			item, err := row(nil, func() (runtime.Object, error) { return printed(), nil }, verbatim.Fragment{})
			if err != nil {
				t.Fatal(err)
			}
			filled, head, tail, ok := c.in.fill(encode(c.list()), verbatim.Fragments{verbatim.NewFragment(item), verbatim.NewFragment(item)})
			if !ok {
				t.Fatal("no field for items")
			}
			got := bytes.Clone(head)
			for i := range filled.Len() {
				if got, err = filled.Append(got, i); err != nil {
					t.Fatal(err)
				}
			}
			partial := metav1.PartialObjectMetadata{ObjectMeta: printed().ObjectMeta}
			if want := encode(c.list(partial, partial)); !bytes.Equal(append(got, tail...), want) {
				t.Errorf("got %q, want %q", append(got, tail...), want)
			}
		})
	}
}

func TestRowsAs_invalidRow_isAnError(t *testing.T) {
	mistake := errors.New("a mistake")
	table := schema.GroupVersionKind{Group: "meta.k8s.io", Version: "v1", Kind: "Table"}
	for name, c := range map[string]struct {
		printer
		read error
		want string
	}{
		"it cannot be read":    {printer{rows: 1}, mistake, "a mistake"},
		"it cannot be printed": {printer{rows: 1, err: mistake}, nil, "a mistake"},
		"two rows":             {printer{rows: 2}, nil, "not a row"},
		"no number":            {printer{rows: 1, cells: []any{math.NaN()}}, nil, "unsupported value"},
	} {
		row := rowsAs(httptest.NewRequest("GET", "/", nil), &table, c.printer)
		if got, err := row(
			nil,
			func() (runtime.Object, error) { return printed(), c.read },
			verbatim.Fragment{},
		); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestRowsAs_uncertainRequest_isDeclined(t *testing.T) {
	kind := func(version, kind string) *schema.GroupVersionKind {
		return &schema.GroupVersionKind{Group: "meta.k8s.io", Version: version, Kind: kind}
	}
	for _, c := range []struct {
		query string
		kind  *schema.GroupVersionKind
		table printer
		ours  bool
	}{
		{"", kind("v1", "Table"), printer{}, true},
		{"limit=5&includeObject=None", kind("v1", "Table"), printer{}, true},
		{"includeObject=Object", kind("v1", "Table"), printer{}, false},
		{"includeObject=nonsense", kind("v1", "Table"), printer{}, false},
		{"", kind("v2", "Table"), printer{}, false},
		{"", kind("v1", "PartialObjectMetadata"), printer{}, false},
		{"includeObject=nonsense", kind("v1beta1", "PartialObjectMetadataList"), printer{}, true},
		{"", &schema.GroupVersionKind{Group: "other.example.com", Version: "v1", Kind: "Table"}, printer{}, false},
	} {
		if row := rowsAs(httptest.NewRequest("GET", "/?"+c.query, nil), c.kind, c.table); (row != nil) != c.ours {
			t.Errorf("%s with %q: ours is %t", c.kind, c.query, row != nil)
		}
	}
	if rowsAs(httptest.NewRequest("GET", "/", nil), kind("v1", "Table"), nil) != nil {
		t.Error("there is nothing that prints")
	}
}
