package registry

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// Rows of a kind with an order have their own cells in both parts: those of markers, and those of the definition.
func TestMarkedTable_sortedRows_haveTheirOwnCells(t *testing.T) {
	name := func(obj runtime.Object) any { return obj.(*v1.Widget).Name }
	for _, withName := range []bool{true, false} {
		k := newKind(t, &define.Kind{}).Definition
		k.WithoutName = !withName
		k.RowOrder = func(a, b runtime.Object) int { return -cmp.Compare(a.(*v1.Widget).Name, b.(*v1.Widget).Name) }
		for _, columns := range [][]define.Column{nil, {{Name: "Again", Value: name}}} {
			k.Columns = columns
			plain := newKindTable(k)
			listed := *plain
			listed.order = nil
			table := markedTable{
				kind: k, other: plain, listed: &listed, order: k.RowOrder,
				versions: map[string]rest.TableConvertor{k.Hub().GroupVersion.Version: newTable([]define.Column{{Name: "Marked",
					Value: name}}, true, false)},
			}
			list := &v1.WidgetList{}
			for _, name := range []string{"b", "c", "a"} {
				list.Items = append(list.Items, v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
			out, err := table.ConvertToTable(context.Background(), list, &metav1.TableOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := map[bool]string{true: "[[c c] [b b] [a a]]", false: "[[c c c] [b b b] [a a a]]"}[columns == nil]
			var cells [][]any
			for _, row := range out.Rows {
				cells = append(cells, row.Cells)
			}
			if got := fmt.Sprint(cells); got != want {
				t.Errorf("with a name %v, with columns %v: %s, want %s", withName, columns != nil, got, want)
			}
		}
	}
}
