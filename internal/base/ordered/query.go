// Package ordered is shared by queries and storages: values whose bytes sort in their natural order, fields of
// objects with such values, and pages of objects in the order of a field. It knows no storage and no requests.
package ordered

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// The types of fields.
const (
	String  = "string"
	Number  = "number"
	Boolean = "boolean"
	Time    = "time"
)

// Field is a field of a resource's objects with an ordered value.
type Field struct {
	// Name is the path of the field in the objects, such as spec.cost.
	Name        string
	Type        string
	Description string
	// Sortable fields have an order that a storage may keep. Text fields are searched for words.
	Sortable, Text bool
	// Get returns the value of an object, a string, boolean, int64, float64 or time.Time, and nil if it has none. It
	// must not change the object, and is called concurrently.
	Get func(runtime.Object) any
	// FromKey, if it is set, returns the value of Get from the namespace and name of an object, which need not be read then.
	FromKey func(namespace, name string) any
	// Each, if it is set, returns several values of an object instead, which a query counts one by one. Such a field has
	// no order and no conditions.
	Each func(runtime.Object) []string
	// Order identifies the order that a storage keeps; empty means Name. Fields of the same Order must have equal values.
	Order string
	// Digest, if it is set, returns the value in an order that is searched and has no bounds for its values.
	Digest func(runtime.Object) string
}

// OrderName returns the name of the order that a storage keeps.
func (f *Field) OrderName() string {
	if f.Order != "" {
		return f.Order
	}
	return f.Name
}

// OrderValue returns the value of an object in the order of the field.
func (f *Field) OrderValue(object runtime.Object) string {
	if f.Digest != nil {
		return f.Digest(object)
	}
	return string(f.Value(object))
}

// reserved are names with another meaning in a query, and names of fields that all objects have.
var reserved = []string{
	"page", "limit", "cursor", "sortBy", "ascending", "facets", "at", "name", "q", "labelSelector", "fieldSelector", "fields",
	"showManagedFields", "watch", "resourceVersion", "namespace", "creationTimestamp", "columns", "labels", "failing",
}

// Reserved reports whether kinds must not declare a field with this name.
func Reserved(name string) bool { return slices.Contains(reserved, name) }

// Value returns the value of an object. If Get panics, the value is missing.
func (f *Field) Value(object runtime.Object) (v Value) {
	defer func() {
		if recover() != nil {
			v = ""
		}
	}()
	return Encode(f.Get(object))
}

// Position is the place of an object in an order. The object need not exist any more.
type Position struct {
	Value           Value
	Namespace, Name string
}

func (p Position) compare(q Position) int {
	return cmp.Or(compare(p.Value, q.Value), cmp.Compare(p.Namespace+"/"+p.Name, q.Namespace+"/"+q.Name))
}

// Condition is the condition that the value of a field is in a set.
type Condition struct {
	Field Field
	Set   Set
}

// Query asks for a page of a resource's objects.
type Query struct {
	// Namespaces are the namespaces of the objects, sorted; nil stands for the scope of the request.
	Namespaces []string
	// By is the field that the objects are ordered by; objects with equal values are ordered by namespace and name,
	// as in lists. Descending reverses both.
	By         Field
	Descending bool
	// Where are conditions, and Matches is a further one, nil for none. Matches may be called concurrently.
	Where   []Condition
	Matches func(runtime.Object) bool
	// Search are conditions on digests, which a storage may keep in an order.
	Search Search
	// After is the position before the page, if it is not nil. Otherwise the page begins after Offset objects.
	After  *Position
	Offset int
	// Limit is the maximum number of objects in a page. With 0, the page only has counts.
	Limit int
	// Counted are fields whose values are counted.
	Counted []Field
}

// Selects reports whether an object fulfils the conditions, apart from its namespace.
func (q *Query) Selects(object runtime.Object) bool {
	for i := range q.Where {
		if c := &q.Where[i]; !c.Set.Has(c.Field.Value(object)) {
			return false
		}
	}
	if !q.Search.Empty() && !q.Search.Selects(object) {
		return false
	}
	return q.Matches == nil || q.Matches(object)
}

// Page is the response to a query, at one revision.
type Page struct {
	// Objects are shared and must not be changed.
	Objects []runtime.Object
	// Last is the position of the last object, and More reports whether objects follow it.
	Last Position
	More bool
	// Total is the number of objects that fulfil the conditions.
	Total int
	// Counts has, for each counted field, the number of objects with each value.
	Counts   []map[Value]int
	Revision uint64

	different int // the number of values in Counts
}

// Querier is a storage that answers queries by itself.
type Querier interface {
	// Query returns a page of the objects whose keys begin with a key, which belongs to the resource or to one of its
	// namespaces. The namespaces of the query are a further restriction.
	Query(ctx context.Context, key string, q *Query) (*Page, error)
}

// PageOf answers a query from a list of all objects, and looks at each of them. Its error is an error of Count.
func PageOf(objects []runtime.Object, q *Query) (*Page, error) {
	type placed struct {
		Position
		object runtime.Object
	}
	page := &Page{Counts: NewCounts(q)}
	var selected []placed
	for _, object := range objects {
		m, err := meta.Accessor(object)
		if err != nil || !q.Selects(object) {
			continue
		}
		if _, in := slices.BinarySearch(q.Namespaces, m.GetNamespace()); q.Namespaces != nil && !in {
			continue
		}
		if err := page.Count(q, object); err != nil {
			return nil, err
		}
		selected = append(selected, placed{Position{q.By.Value(object), m.GetNamespace(), m.GetName()}, object})
	}
	page.Total = len(selected)
	inOrder := func(a, b Position) int { return a.compare(b) }
	if q.Descending {
		inOrder = func(a, b Position) int { return b.compare(a) }
	}
	slices.SortFunc(selected, func(a, b placed) int { return inOrder(a.Position, b.Position) })
	first := min(q.Offset, len(selected))
	if q.After != nil {
		first, _ = slices.BinarySearchFunc(selected, *q.After, func(p placed, after Position) int {
			if inOrder(p.Position, after) <= 0 {
				return -1
			}
			return 1
		})
	}
	last := min(first+q.Limit, len(selected))
	for _, p := range selected[first:last] {
		page.Objects, page.Last = append(page.Objects, p.object), p.Position
	}
	page.More = q.Limit > 0 && last < len(selected)
	return page, nil
}

// NewCounts returns the counts of an empty page.
func NewCounts(q *Query) []map[Value]int {
	counts := make([]map[Value]int, len(q.Counted))
	for i := range counts {
		counts[i] = map[Value]int{}
	}
	return counts
}

// MostValues is the maximum number of different values that one query counts, in all its fields.
const MostValues = 100_000

// Count adds an object to the counts of the page. The error is a bad request: there are too many different values.
func (p *Page) Count(q *Query, object runtime.Object) error {
	for i := range q.Counted {
		field := &q.Counted[i]
		if field.Each == nil {
			if err := p.count(i, field.Value(object)); err != nil {
				return err
			}
			continue
		}
		if err := p.CountEach(i, field.Each(object)); err != nil {
			return err
		}
	}
	return nil
}

// CountEach adds several values of one object to the counts of the field with an index.
func (p *Page) CountEach(i int, values []string) error {
	for _, value := range values {
		if err := p.count(i, Encode(value)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Page) count(i int, v Value) error {
	if p.Counts[i][v]++; p.Counts[i][v] > 1 {
		return nil
	}
	if p.different++; p.different > MostValues {
		return apierrors.NewBadRequest(fmt.Sprintf("facets: the selected objects have more than %d different values of the counted "+
			"fields; count fields with fewer values, or select fewer objects", MostValues))
	}
	return nil
}

// CountedBytes returns the approximate memory of the counts, in bytes.
func (p *Page) CountedBytes() int64 { return int64(p.different) * (LongestString/2 + 64) }
