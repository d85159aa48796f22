package registry

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// Table returns the convertor of the kind's objects to tables; nil if the kind has its own storage.
func (k *Kind) Table() rest.TableConvertor {
	if k.store == nil {
		return nil
	}
	return k.store.TableConvertor
}

// ColumnValue returns the value of a column that the kind declares in Go, for an order of objects: a string, boolean,
// int64, float64 or time.Time, or nil. It returns false if the kind declares no such column.
func ColumnValue(k *define.Kind, name string) (value func(runtime.Object) any, declared bool) {
	for _, c := range k.Columns {
		if c.Name == name {
			return func(o runtime.Object) any { return ordinal(c.Value(o)) }, true
		}
	}
	return nil, false
}

// ordinal converts the value of a column to a value with an order.
func ordinal(value any) any {
	switch v := value.(type) {
	case metav1.Time:
		return v.Time
	case *metav1.Time:
		if v == nil {
			return nil
		}
		return v.Time
	}
	switch v := cell(value).(type) {
	case nil, string, bool, int64, float64:
		return v
	default:
		return fmt.Sprint(v)
	}
}
