// Package ordered is what queries and storages agree on: values whose bytes sort as what they
// stand for, fields of objects that have such values, and pages of objects in the order of a
// field. It knows no storage and no requests.
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

// Field is a value that objects of a resource have.
type Field struct {
	// Name is the path of the field in the objects, such as spec.cost.
	Name        string
	Type        string
	Description string
	// Sortable fields have an order that a storage may keep, and Text is searched for words.
	Sortable, Text bool
	// Get returns the value of an object, a string, boolean, int64, float64 or time.Time, and nil if
	// it has none. It must not change the object, and is called by many goroutines at once.
	Get func(runtime.Object) any
}

// reserved are names that say something else to a query, or are of fields that all objects have.
var reserved = []string{
	"page", "limit", "cursor", "sortBy", "ascending", "facets", "name", "q", "labelSelector", "fieldSelector", "fields", "showManagedFields",
	"watch", "resourceVersion", "namespace", "creationTimestamp",
}

// Reserved tells whether no kind can declare a field of a name.
func Reserved(name string) bool { return slices.Contains(reserved, name) }

// Value is the value of an object. A function that panics has told none.
func (f *Field) Value(object runtime.Object) (v Value) {
	defer func() {
		if recover() != nil {
			v = ""
		}
	}()
	return Encode(f.Get(object))
}

// Position is a place in an order: that of an object, which need not be there any more.
type Position struct {
	Value           Value
	Namespace, Name string
}

func (p Position) compare(q Position) int {
	return cmp.Or(compare(p.Value, q.Value), cmp.Compare(p.Namespace+"/"+p.Name, q.Namespace+"/"+q.Name))
}

// Condition is that the value of a field is in a set.
type Condition struct {
	Field Field
	Set   Set
}

// Query asks for a page of a resource's objects.
type Query struct {
	// Namespaces are those of the objects, sorted; nil is wherever the request looks.
	Namespaces []string
	// By is what the objects are ordered by, and then as lists are, by namespace and name.
	// Descending is the reverse of both.
	By         Field
	Descending bool
	// Where are conditions, and Matches is one more, nil for none. It may be called by many
	// goroutines at once.
	Where   []Condition
	Matches func(runtime.Object) bool
	// After is where the page begins, if it is not nil: behind that place. Else it begins behind
	// as many objects as Offset says.
	After  *Position
	Offset int
	// Limit is how many objects are in a page at most. With 0, there is only what is counted.
	Limit int
	// Counted are fields whose values are counted.
	Counted []Field
}

// Selects tells whether an object fulfils the conditions, but for its namespace.
func (q *Query) Selects(object runtime.Object) bool {
	for i := range q.Where {
		if c := &q.Where[i]; !c.Set.Has(c.Field.Value(object)) {
			return false
		}
	}
	return q.Matches == nil || q.Matches(object)
}

// Page is the answer to a query: what is so at one revision.
type Page struct {
	// Objects are shared and must not be changed.
	Objects []runtime.Object
	// Last is the place of the last of them, and More tells whether there are objects behind it.
	Last Position
	More bool
	// Total is how many objects the conditions select.
	Total int
	// Counts are, for each of the fields that are counted, how many of these have a value.
	Counts   []map[Value]int
	Revision uint64

	different int // how many values there are in Counts
}

// Querier is a storage that answers queries by itself.
type Querier interface {
	// Query returns a page of the objects whose keys begin with a key, which is that of the
	// resource or of one of its namespaces. If the query names namespaces, they are in both.
	Query(ctx context.Context, key string, q *Query) (*Page, error)
}

// PageOf answers a query from a list of all objects, at the cost of looking at each. An error is one of
// Count.
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

// NewCounts returns the counts of a page that has none yet.
func NewCounts(q *Query) []map[Value]int {
	counts := make([]map[Value]int, len(q.Counted))
	for i := range counts {
		counts[i] = map[Value]int{}
	}
	return counts
}

// MostValues is how many different values one query counts, in all its fields.
const MostValues = 100_000

// Count adds an object to the counts of the page. An error is the caller's: there are too many different
// values.
func (p *Page) Count(q *Query, object runtime.Object) error {
	for i := range q.Counted {
		v := q.Counted[i].Value(object)
		if p.Counts[i][v]++; p.Counts[i][v] > 1 {
			continue
		}
		if p.different++; p.different > MostValues {
			return apierrors.NewBadRequest(fmt.Sprintf("facets: what is selected has more than %d different values of the fields that are "+
				"counted; count fields with fewer values, or select less", MostValues))
		}
	}
	return nil
}

// CountedBytes is about how much memory the counts take.
func (p *Page) CountedBytes() int64 { return int64(p.different) * (LongestString/2 + 64) }
