package query

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Table prints objects in the columns of their kind.
type Table struct {
	Columns []Column
	// cells returns the cells of objects, in the order of Columns.
	cells func(objects []runtime.Object) ([][]any, error)
}

// Column is a column of a table.
type Column struct {
	metav1.TableColumnDefinition
	// By is the field that the column is sorted by; nil means none.
	By *ordered.Field
	// search is set if the words of a query are searched in the cells.
	search bool
}

// columnPrefix begins the names of fields that are columns without another field.
const columnPrefix = "column:"

// NewTable returns the table that a convertor makes of the objects of a resource. fieldOf returns the field by which a
// column is sorted, nil if its order has no meaning, and false to sort it by its cells. empty is an empty list.
func NewTable(
	resource *Resource,
	convertor rest.TableConvertor,
	empty runtime.Object,
	fieldOf func(metav1.TableColumnDefinition) (by *ordered.Field, known bool),
) (*Table, error) {
	ctx := request.WithRequestInfo(context.Background(), &request.RequestInfo{
		IsResourceRequest: true, Verb: "list",
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
	})
	head, err := convertor.ConvertToTable(ctx, empty, nil)
	if err != nil {
		return nil, fmt.Errorf("columns of %s: %w", resource.Resource, err)
	}
	t := &Table{cells: func(objects []runtime.Object) ([][]any, error) {
		all := make([][]any, len(objects))
		for i, o := range objects {
			printed, err := convertor.ConvertToTable(ctx, o, &metav1.TableOptions{NoHeaders: true})
			if err != nil {
				return nil, fmt.Errorf("print %s: %w", resource.Resource, err)
			}
			if len(printed.Rows) == 1 {
				all[i] = printed.Rows[0].Cells
			}
		}
		return all, nil
	}}
	for i, d := range head.ColumnDefinitions {
		by, known := fieldOf(d)
		if !known && d.Type != "date" {
			by = t.byCell(d, i, resource.Edition+"/"+resource.Version)
		}
		t.add(d, by)
	}
	return t, nil
}

// add adds a column that is sorted by a field, which may be nil.
func (t *Table) add(d metav1.TableColumnDefinition, by *ordered.Field) {
	if by != nil && strings.HasPrefix(by.Name, columnPrefix) && strings.ContainsAny(d.Name, "[],") {
		by = nil // no parameter can have such a name
	}
	// Words are not searched in ages, which grow, nor twice in a text.
	search := d.Type != "date" && (by == nil || !by.Text && by.Name != "creationTimestamp")
	t.Columns = append(t.Columns, Column{TableColumnDefinition: d, By: by, search: search})
}

// ColumnField returns a field with the values of a column. edition identifies the definition of the column, if it can
// change.
func ColumnField(d metav1.TableColumnDefinition, edition string, value func(runtime.Object) any) *ordered.Field {
	return &ordered.Field{
		Name: columnPrefix + d.Name, Order: columnPrefix + edition + "/" + d.Name, Description: d.Description,
		Sortable: true, Type: typeOfColumn(d), Get: value,
	}
}

// byCell returns a field with the cells of a column.
func (t *Table) byCell(d metav1.TableColumnDefinition, i int, edition string) *ordered.Field {
	kind := typeOfColumn(d)
	return ColumnField(d, edition, func(o runtime.Object) any {
		cells, err := t.cells([]runtime.Object{o})
		if err != nil || len(cells[0]) <= i {
			return nil
		}
		return valueOfCell(cells[0][i], kind)
	})
}

func typeOfColumn(d metav1.TableColumnDefinition) string {
	switch d.Type {
	case "integer", "number":
		return ordered.Number
	case "boolean":
		return ordered.Boolean
	case "date":
		return ordered.Time
	}
	return ordered.String
}

// valueOfCell returns a cell as a value of a field's type; nil if it is of another type.
func valueOfCell(cell any, kind string) any {
	switch v := cell.(type) {
	case nil:
		return nil
	case int64, float64:
		if kind == ordered.Number {
			return v
		}
	case bool:
		if kind == ordered.Boolean {
			return v
		}
	}
	if kind != ordered.String {
		return nil
	}
	if s, ok := cell.(string); ok {
		return s
	}
	return fmt.Sprint(cell)
}

// columnFields returns the fields that are columns alone.
func (r *Resource) columnFields() []ordered.Field {
	if r.Table == nil {
		return nil
	}
	var all []ordered.Field
	for _, c := range r.Table.Columns {
		if c.By != nil && strings.HasPrefix(c.By.Name, columnPrefix) && fieldOf(all, c.By.Name) == nil {
			all = append(all, *c.By)
		}
	}
	return all
}

// FieldNamed returns the field of a resource with a name, for the columns of a table; nil if there is none.
func (r *Resource) FieldNamed(name string) *ordered.Field {
	if f := fieldOf(r.fields(), name); f != nil && f.Sortable {
		return f
	}
	return nil
}

// digest returns the field of what words are searched in: the name, namespace, labels, texts and printed columns of an
// object.
func (r *Resource) digest(table *Table) ordered.Field {
	var fields []ordered.Field
	for _, f := range r.fields() {
		if f.Text || f.Name == "namespace" {
			fields = append(fields, f)
		}
	}
	return ordered.NewDigest("digest:"+r.Version+"/"+r.Edition, func(o runtime.Object) string {
		var all []string
		for i := range fields {
			all = append(all, text(&fields[i], o))
		}
		if table == nil {
			return strings.Join(all, "\n")
		}
		cells, err := table.cells([]runtime.Object{o})
		if err != nil {
			return strings.Join(all, "\n")
		}
		for i, c := range table.Columns {
			if c.search && i < len(cells[0]) && cells[0][i] != nil {
				all = append(all, fmt.Sprint(cells[0][i]))
			}
		}
		return strings.Join(all, "\n")
	})
}

// answeredTable is a table whose cells an answer has, by its objects.
func answeredTable(definitions []metav1.TableColumnDefinition, cells map[runtime.Object][]any) *Table {
	t := &Table{cells: func(objects []runtime.Object) ([][]any, error) {
		all := make([][]any, len(objects))
		for i, o := range objects {
			all[i] = cells[o]
		}
		return all, nil
	}}
	for i, d := range definitions {
		by := MetadataColumn(d)
		if by == nil && d.Type != "date" {
			by = t.byCell(d, i, "")
		}
		t.add(d, by)
	}
	return t
}

func isAge(d metav1.TableColumnDefinition) bool { return d.Name == "Age" || d.Name == "Created At" }

// MetadataColumn returns the field of a column that every kind has, its name or its age.
func MetadataColumn(d metav1.TableColumnDefinition) *ordered.Field {
	switch {
	case d.Format == "name":
		return fieldOf(metadata(), "name")
	case isAge(d):
		return fieldOf(metadata(), "creationTimestamp")
	}
	return nil
}

// columnDoc describes a column in a response.
type columnDoc struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
	// SortBy is the field that the column is sorted by; absent if it is not sorted.
	SortBy string `json:"sortBy,omitempty"`
}

// describe returns the columns of a response.
func (t *Table) describe() []columnDoc {
	all := []columnDoc{}
	for _, c := range t.Columns {
		d := columnDoc{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Priority: c.Priority}
		if c.By != nil {
			d.SortBy = c.By.Name
		}
		all = append(all, d)
	}
	return all
}

// failingField reports whether a condition in the status of an object is one that fails.
func failingField() ordered.Field {
	return ordered.Field{
		Name:        "failing",
		Type:        ordered.Boolean,
		Description: "whether a condition in the status fails: one such as Ready is False, or one such as Degraded is True",
		Get:         func(o runtime.Object) any { return fails(o) },
	}
}

// positive are types of conditions that should be True, negative are those that should not.
var (
	positive = map[string]bool{
		"Ready": true, "Available": true, "Healthy": true, "Synced": true, "Reconciled": true, "Established": true, "Accepted": true,
		"Programmed": true, "ResolvedRefs": true, "Valid": true, "ContainersReady": true, "PodScheduled": true, "NamesAccepted": true,
		"Progressing": true, "Initialized": true, "Succeeded": true,
	}
	negative = map[string]bool{
		"Failed": true, "Failure": true, "Degraded": true, "Stalled": true, "Error": true, "ReplicaFailure": true, "Rejected": true,
		"MemoryPressure": true, "DiskPressure": true, "PIDPressure": true, "NetworkUnavailable": true,
	}
)

func fails(o runtime.Object) bool {
	isFailing := func(kind, status string) bool {
		return positive[kind] && status == "False" || negative[kind] && status == "True"
	}
	if u, ok := o.(*unstructured.Unstructured); ok {
		conditions, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
		all, _ := conditions.([]any)
		for _, one := range all {
			c, _ := one.(map[string]any)
			kind, _ := c["type"].(string)
			status, _ := c["status"].(string)
			if isFailing(kind, status) {
				return true
			}
		}
		return false
	}
	conditions := fieldAt(fieldAt(reflect.Indirect(reflect.ValueOf(o)), "Status"), "Conditions")
	if conditions.Kind() != reflect.Slice {
		return false
	}
	for i := range conditions.Len() {
		c := reflect.Indirect(conditions.Index(i))
		kind, status := fieldAt(c, "Type"), fieldAt(c, "Status")
		if kind.Kind() == reflect.String && status.Kind() == reflect.String && isFailing(kind.String(), status.String()) {
			return true
		}
	}
	return false
}

// fieldAt returns a field of a struct; the zero value if there is none.
func fieldAt(v reflect.Value, name string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return reflect.Indirect(v.FieldByName(name))
}
