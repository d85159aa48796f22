package query

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/storage/past"
)

type metaObject = metav1.Object

const (
	// defaultLimit and largestLimit are the default and the maximum number of items on a page. lastPage is the
	// highest page number.
	defaultLimit = 50
	largestLimit = 1000
	lastPage     = 1_000_000
	// mostFacets is the maximum number of facets in a request, mostValues that of values in all conditions.
	mostFacets = 10
	mostValues = 200
	// mostWords is the maximum number of words in a request, mostParts that of substrings. Every object is searched
	// for each of them.
	mostWords = 50
	mostParts = 50
	// longestValue is the maximum length of a value.
	longestValue = ordered.LongestString - 1
)

// parsedRequest is a parsed request.
type parsedRequest struct {
	place    place
	resource *Resource
	request  ordered.Request
	tail     bool
	// selectors are passed on to the list.
	selectors url.Values
	// version is the resource version at which a tail continues; empty begins with the current objects. union
	// identifies the namespaces of the earlier tail, if it had several.
	version, union string
	// projection are the fields of items to keep; nil keeps all.
	projection [][]string
	// managedFields keeps metadata.managedFields in items, which are the largest part of many objects.
	managedFields bool
	facets        []string
	// columns is set if the answer has a table.
	columns bool
	// table prints the page; nil if the resource has no columns.
	table *Table
	// byColumn is the column of a list that the page is sorted by, which is known when the list is there.
	byColumn string
	// binding identifies the query that a cursor is valid for.
	binding string
	// at is the moment of a page of the past; nil is now.
	at *past.Point
}

// Parameters that are not fields: of both, of pages and of tails.
var (
	common    = []string{"name", "q", "labelSelector", "fieldSelector", "fields", "showManagedFields"}
	ofPages   = []string{"page", "limit", "cursor", "sortBy", "ascending", "facets", "columns", "at"}
	ofTails   = []string{"watch", "resourceVersion"}
	operators = []string{"ne", "gt", "gte", "lt", "lte", "contains"}
)

// parse parses a request. Its errors are for the caller.
func parse(r *http.Request, p place, resource *Resource) (*parsedRequest, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("the parameters cannot be read: %w", err)
	}
	a := &parsedRequest{place: p, resource: resource, tail: isTail(query), selectors: url.Values{}}
	fields := resource.allFields()
	a.table = resource.Table
	if err := a.checkNames(query, fields); err != nil {
		return nil, err
	}
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		if query.Has(name) {
			a.selectors.Set(name, query.Get(name))
		}
	}
	if err := a.conditions(query, fields); err != nil {
		return nil, err
	}
	if query.Has("fields") {
		if a.projection, err = projectionOf(query.Get("fields")); err != nil {
			return nil, err
		}
		a.managedFields = slices.ContainsFunc(a.projection, func(path []string) bool {
			return len(path) >= 2 && path[0] == "metadata" && path[1] == "managedFields"
		})
	}
	switch show := query.Get("showManagedFields"); {
	case show == "true":
		a.managedFields = true
	case show != "false" && query.Has("showManagedFields"):
		return nil, fmt.Errorf("showManagedFields: %.100q must be true or false", show)
	}
	if a.tail {
		return a, a.where(r, query)
	}
	return a, a.pages(query, fields)
}

// checkNames rejects unknown parameters, repeated ones except conditions, and too many values.
func (a *parsedRequest) checkNames(query url.Values, fields []ordered.Field) error {
	values := 0
	for _, name := range sortedKeys(query) {
		field, operator, bracketed := strings.Cut(name, "[")
		operator, closed := strings.CutSuffix(operator, "]")
		switch {
		case slices.Contains(common, name), slices.Contains(ofPages, name), slices.Contains(ofTails, name):
			switch {
			case a.tail && slices.Contains(ofPages, name):
				return fmt.Errorf("%s is not supported with watch=true", name)
			case !a.tail && name == "resourceVersion":
				return errors.New("resourceVersion requires watch=true; at asks for a page of the past")
			case len(query[name]) > 1:
				return fmt.Errorf("%s is set %d times", name, len(query[name]))
			}
			continue
		case fieldOf(fields, field) == nil:
			return fmt.Errorf(
				"unknown parameter or field %.100q: parameters are %s; fields are %s",
				field,
				list(common, ofPages, ofTails),
				list(names(fields)),
			)
		case bracketed && (!closed || !slices.Contains(operators, operator)):
			return fmt.Errorf("%.100q: unsupported operator: use the field alone, or one of [%s]", name, strings.Join(operators, "], ["))
		}
		values += len(query[name])
		if values > mostValues {
			return fmt.Errorf("the conditions have more than %d values", mostValues)
		}
	}
	return nil
}

// conditions parses the conditions on objects.
func (a *parsedRequest) conditions(query url.Values, fields []ordered.Field) error {
	var others []func(runtime.Object) bool
	parts := 0
	contains := func(field ordered.Field, all []string) {
		parts += len(all)
		others = append(others, func(o runtime.Object) bool {
			s := text(&field, o)
			return !slices.ContainsFunc(all, func(part string) bool { return !strings.Contains(s, part) })
		})
	}
	for _, name := range sortedKeys(query) {
		if slices.Contains(common, name) || slices.Contains(ofPages, name) || slices.Contains(ofTails, name) {
			continue
		}
		path, operator, _ := strings.Cut(strings.TrimSuffix(name, "]"), "[")
		field := *fieldOf(fields, path)
		if operator == "contains" {
			if field.Type != ordered.String {
				return fmt.Errorf("%s is a %s, which does not support contains", path, field.Type)
			}
			contains(field, query[name])
			continue
		}
		set, err := setOf(&field, operator, query[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		a.request.Where = append(a.request.Where, ordered.Condition{Field: field, Set: set})
	}
	if part := query.Get("name"); part != "" {
		contains(*fieldOf(fields, "name"), []string{part})
	}
	if parts > mostParts {
		return fmt.Errorf("the conditions have %d substrings; the maximum is %d", parts, mostParts)
	}
	words := strings.Fields(strings.ToLower(query.Get("q")))
	if len(words) > mostWords {
		return fmt.Errorf("q: %d words; the maximum is %d", len(words), mostWords)
	}
	if slices.Sort(words); len(words) > 0 {
		a.request.Search.Words = slices.Compact(words)
	}
	a.request.Search.Digest = a.resource.digest(a.table)
	if len(others) > 0 {
		a.request.Matches = func(o runtime.Object) bool {
			return !slices.ContainsFunc(others, func(holds func(runtime.Object) bool) bool { return !holds(o) })
		}
	}
	return nil
}

// setOf returns the values that match: any of several equal values, or the values that meet all of the other
// conditions.
func setOf(field *ordered.Field, operator string, texts []string) (ordered.Set, error) {
	var equal []ordered.Interval
	set := ordered.All()
	for _, text := range texts {
		v, err := valueOf(field, text)
		if err != nil {
			return nil, err
		}
		switch operator {
		case "":
			equal = append(equal, ordered.Exactly(v))
		case "ne":
			set = set.And(ordered.Not(v))
		case "gt":
			set = set.And(ordered.Set{ordered.After(v)})
		case "gte":
			set = set.And(ordered.Set{ordered.From(v)})
		case "lt":
			set = set.And(ordered.Set{ordered.Below(v)})
		case "lte":
			set = set.And(ordered.Set{ordered.UpTo(v)})
		}
	}
	if operator == "" {
		return ordered.Union(equal...), nil
	}
	return set, nil
}

// valueOf parses a value of a field's type.
func valueOf(field *ordered.Field, text string) (ordered.Value, error) {
	if len(text) > longestValue {
		return "", fmt.Errorf("a value of %d bytes; the maximum is %d", len(text), longestValue)
	}
	switch field.Type {
	case ordered.Number:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return ordered.Encode(n), nil
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil && ordered.Encode(f) != "" {
			return ordered.Encode(f), nil
		}
		return "", fmt.Errorf("%.100q is not a number", text)
	case ordered.Boolean:
		if text != "true" && text != "false" {
			return "", fmt.Errorf("%.100q must be true or false", text)
		}
		return ordered.Encode(text == "true"), nil
	case ordered.Time:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || ordered.Encode(t) == "" {
			return "", fmt.Errorf("%.100q is not a time such as 2026-01-02T15:04:05Z", text)
		}
		return ordered.Encode(t), nil
	}
	return ordered.Encode(text), nil
}

// text returns the complete string of a field. It returns an empty string if the field's function panics.
func text(field *ordered.Field, o runtime.Object) (s string) {
	defer func() {
		if recover() != nil {
			s = ""
		}
	}()
	s, _ = field.Get(o).(string)
	return s
}

// pages parses the parameters of pages.
func (a *parsedRequest) pages(query url.Values, fields []ordered.Field) error {
	q := &a.request.Query
	var err error
	if query.Has("at") {
		at, err := past.ParsePoint(query.Get("at"), time.Now())
		if err != nil {
			return fmt.Errorf("at: %w", err)
		}
		a.at = &at
	}
	if q.Limit, err = number(query, "limit", defaultLimit, 0, largestLimit); err != nil {
		return err
	}
	page, err := number(query, "page", 1, 1, lastPage)
	if err != nil {
		return err
	}
	if q.Offset = (page - 1) * q.Limit; query.Has("cursor") && query.Has("page") {
		return errors.New("page and cursor exclude each other")
	}
	sortBy := "namespace"
	if query.Has("sortBy") {
		sortBy = query.Get("sortBy")
	}
	sortable := slices.DeleteFunc(slices.Clone(fields), func(f ordered.Field) bool { return !f.Sortable })
	by := fieldOf(sortable, sortBy)
	if column, is := strings.CutPrefix(sortBy, columnPrefix); is && a.resource.Encode == nil {
		a.byColumn, by = column, &ordered.Field{Name: sortBy, Type: ordered.String, Sortable: true, Get: func(runtime.Object) any { return nil }}
	}
	if by == nil {
		return fmt.Errorf("sortBy: unknown field %.100q: fields are %s", sortBy, list(names(sortable)))
	}
	q.By = *by
	switch direction := query.Get("ascending"); {
	case !query.Has("ascending") || direction == "true":
	case direction == "false":
		q.Descending = true
	default:
		return fmt.Errorf("ascending: %.100q must be true or false", direction)
	}
	switch columns := query.Get("columns"); {
	case columns == "true":
		a.columns = true
	case columns != "false" && query.Has("columns"):
		return fmt.Errorf("columns: %.100q must be true or false", columns)
	}
	if query.Has("facets") {
		countable := append(slices.Clone(fields), ordered.LabelsField())
		for name := range strings.SplitSeq(query.Get("facets"), ",") {
			field := fieldOf(countable, name)
			switch {
			case field == nil:
				return fmt.Errorf("facets: unknown field %.100q: fields are %s", name, list(names(countable)))
			case slices.Contains(a.facets, name):
				return fmt.Errorf("facets: %s is named twice", name)
			case len(a.facets) == mostFacets:
				return fmt.Errorf("facets: %d fields at most", mostFacets)
			}
			a.facets, q.Counted = append(a.facets, name), append(q.Counted, *field)
		}
	}
	a.binding = bindingOf(a.place, query, q)
	if query.Has("cursor") {
		if q.After, err = readCursor(query.Get("cursor"), a.binding); err != nil {
			return err
		}
	}
	return nil
}

// bindingOf identifies the selected objects and their order.
func bindingOf(p place, query url.Values, q *ordered.Query) string {
	what := url.Values{}
	for name, values := range query {
		if slices.Contains(ofPages, name) || name == "fields" || name == "showManagedFields" || name == "watch" {
			continue
		}
		what[name] = slices.Sorted(slices.Values(values))
	}
	return strings.Join([]string{p.path(), what.Encode(), q.By.Name, strconv.FormatBool(q.Descending)}, "\n")
}

// number parses an integer parameter.
func number(query url.Values, name string, otherwise, least, most int) (int, error) {
	if !query.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.Atoi(query.Get(name))
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s: %.100q is not a number from %d to %d", name, query.Get(name), least, most)
	}
	return n, nil
}

// where parses the start of a tail.
func (a *parsedRequest) where(r *http.Request, query url.Values) error {
	if !a.resource.Watched {
		return fmt.Errorf("%s cannot be watched", a.resource.Resource)
	}
	a.version = r.Header.Get("Last-Event-ID")
	if a.version == "" {
		a.version = query.Get("resourceVersion")
	}
	a.version, a.union, _ = strings.Cut(a.version, unionMark)
	if n, err := strconv.ParseUint(a.version, 10, 64); a.version != "" && (err != nil || n == 0) {
		return fmt.Errorf("%.100q is not a resource version of this server", a.version)
	}
	return nil
}

func fieldOf(fields []ordered.Field, name string) *ordered.Field {
	i := slices.IndexFunc(fields, func(f ordered.Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &fields[i]
}

func names(fields []ordered.Field) []string {
	var all []string
	for _, f := range fields {
		all = append(all, f.Name)
	}
	return all
}

func list(all ...[]string) string { return strings.Join(slices.Concat(all...), ", ") }

func sortedKeys(query url.Values) []string {
	keys := make([]string, 0, len(query))
	for name := range query {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}
