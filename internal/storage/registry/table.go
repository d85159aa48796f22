package registry

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/annexapi/annex/internal/model/define"
)

// table prints objects: the name, the declared columns, and the age.
type table struct {
	name    bool
	columns []define.Column
	headers []metav1.TableColumnDefinition
	order   func(a, b runtime.Object) int
}

var descriptions = metav1.ObjectMeta{}.SwaggerDoc()

func newKindTable(k *define.Kind) *table {
	t := newTable(k.Columns, !k.WithoutName, !k.WithoutAge)
	t.order = k.RowOrder
	return t
}

func newTable(columns []define.Column, name, age bool) *table {
	t := &table{name: name, columns: columns}
	if name {
		t.headers = append(
			t.headers,
			metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: descriptions["name"]},
		)
	}
	for _, c := range columns {
		header := metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description}
		if c.Wide {
			header.Priority = 1
		}
		t.headers = append(t.headers, header)
		age = age && c.Name != "Age"
	}
	if age {
		t.headers = append(t.headers, metav1.TableColumnDefinition{Name: "Age", Type: "date", Description: descriptions["creationTimestamp"]})
	}
	return t
}

func (t *table) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		out.ColumnDefinitions = t.headers
	}
	if l, err := meta.ListAccessor(object); err == nil {
		out.ResourceVersion = l.GetResourceVersion()
		out.Continue = l.GetContinue()
		out.RemainingItemCount = l.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
	var err error
	out.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, m metav1.Object, name, age string) ([]any, error) {
		cells := make([]any, 0, len(t.headers))
		if t.name {
			cells = append(cells, name)
		}
		for _, c := range t.columns {
			cells = append(cells, cell(c.Value(obj)))
		}
		if len(cells) < len(t.headers) {
			cells = append(cells, age)
		}
		return cells, nil
	})
	if err != nil {
		return nil, fmt.Errorf("print a table: %w", err)
	}
	if t.order != nil {
		slices.SortStableFunc(out.Rows, func(a, b metav1.TableRow) int { return t.order(a.Object.Object, b.Object.Object) })
	}
	return out, nil
}

// cell converts a column's value for a table cell: numbers, booleans and strings unchanged, times as their distance
// from now, other values as text.
func cell(value any) any {
	switch v := value.(type) {
	case nil, string, bool, int64, float64:
		return v
	case int:
		return int64(v)
	case int32:
		return int64(v)
	case *int32:
		if v == nil {
			return nil
		}
		return int64(*v)
	case metav1.Time:
		if v.IsZero() {
			return "<unknown>"
		}
		return duration.HumanDuration(metav1.Now().Sub(v.Time))
	case *metav1.Time:
		if v == nil {
			return "<unknown>"
		}
		return cell(*v)
	case fmt.Stringer:
		return v.String()
	default:
		return fmt.Sprint(v)
	}
}
