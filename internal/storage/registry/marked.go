package registry

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// validateMarked validates an object by kubebuilder markers. It first applies the markers of the request's version, as
// a server of CustomResourceDefinitions would. If the object passes, it applies the markers of the hub.
func (s strategy) validateMarked(ctx context.Context, obj, old runtime.Object, status bool) field.ErrorList {
	versions := []*define.Version{s.kind.Hub()}
	if v := s.requested(ctx); v != nil {
		versions = []*define.Version{v, s.kind.Hub()}
	}
	for i, v := range versions {
		if v.Structural == nil {
			continue
		}
		errs, err := s.validateVersion(ctx, v, obj, old, status, i == 0)
		if err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	return nil
}

// validateVersion validates an object by the markers of one version. spoken is set if it is the version of the request.
func (s strategy) validateVersion(
	ctx context.Context,
	v *define.Version,
	obj, old runtime.Object,
	status, spoken bool,
) (field.ErrorList, error) {
	obj, err := s.inVersion(obj, v)
	if err != nil {
		return nil, err
	}
	var before map[string]any
	if old != nil {
		if old, err = s.inVersion(old, v); err != nil {
			return nil, err
		}
		if before, err = v.Structural.Read(old); err != nil {
			return nil, err
		}
	}
	var doc map[string]any
	if spoken {
		doc, err = v.Structural.Document(ctx, obj, before)
	} else {
		doc, err = v.Structural.Read(obj)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case status:
		whole, err := v.Structural.Read(obj)
		if err != nil {
			return nil, err
		}
		take(whole, doc, "status")
		return s.unfitErrors(ctx, v, spoken, status, v.Structural.ValidateStatusUpdate(ctx, whole, before)), nil
	case s.kind.Status && old != nil:
		take(doc, before, "status")
	case s.kind.Status:
		delete(doc, "status")
	}
	if old != nil {
		return s.unfitErrors(ctx, v, spoken, status, v.Structural.ValidateUpdate(ctx, doc, before)), nil
	}
	return s.unfitErrors(ctx, v, spoken, status, v.Structural.Validate(ctx, doc)), nil
}

// unfitErrors returns the errors of the rules. If there are none, it returns an error for each value that the Go type of
// the request's version cannot hold.
func (s strategy) unfitErrors(ctx context.Context, v *define.Version, spoken, status bool, errs field.ErrorList) field.ErrorList {
	if len(errs) > 0 || !spoken {
		return errs
	}
	return v.Structural.Unfit(ctx, func(part string) bool { return !s.kind.Status || status == (part == "status") })
}

func take(doc, from map[string]any, name string) {
	if value, ok := from[name]; ok {
		doc[name] = value
	} else {
		delete(doc, name)
	}
}

// inVersion converts an object from the hub to a version.
func (s strategy) inVersion(obj runtime.Object, v *define.Version) (runtime.Object, error) {
	if v.Type == s.kind.Hub().Type {
		return obj, nil
	}
	out, err := s.convertor.ConvertToVersion(obj, v.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("convert to %s for validation: %w", v.GroupVersion, err)
	}
	return out, nil
}

// markedTable prints objects in the columns of the markers of the request's version. Versions may have different
// columns.
type markedTable struct {
	kind      *define.Kind
	convertor runtime.ObjectConvertor
	versions  map[string]rest.TableConvertor
	other     rest.TableConvertor
	// listed is other without its order of rows, so that its rows match those of versions.
	listed rest.TableConvertor
	order  func(a, b runtime.Object) int
}

// tableOf returns the table convertor of the kind.
func tableOf(k *define.Kind, convertor runtime.ObjectConvertor) (rest.TableConvertor, error) {
	plain := newKindTable(k)
	listed := *plain
	listed.order = nil
	t := markedTable{
		kind: k, convertor: convertor, versions: map[string]rest.TableConvertor{}, other: plain, listed: &listed, order: k.RowOrder,
	}
	for _, v := range k.Versions {
		if v.Structural == nil {
			continue
		}
		table, err := v.Structural.Table()
		if err != nil {
			return nil, fmt.Errorf("columns of %s: %w", v.GroupVersion.WithKind(k.Name), err)
		}
		if table != nil {
			t.versions[v.GroupVersion.Version] = table
		}
	}
	if len(t.versions) == 0 {
		return plain, nil
	}
	return t, nil
}

// ConvertToTable implements rest.TableConvertor.
func (t markedTable) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	version := t.kind.Versions[0]
	if info, ok := request.RequestInfoFrom(ctx); ok {
		for _, v := range t.kind.Versions {
			if v.GroupVersion.Version == info.APIVersion {
				version = v
			}
		}
	}
	table, ok := t.versions[version.GroupVersion.Version]
	if !ok {
		return t.other.ConvertToTable(ctx, object, options)
	}
	hub := object
	if version.Type != t.kind.Hub().Type {
		converted, err := t.convertor.ConvertToVersion(object, version.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("print a table: %w", err)
		}
		object = converted
	}
	out, err := table.ConvertToTable(ctx, object, options)
	if err != nil || len(t.kind.Columns) == 0 && t.order == nil {
		return out, err
	}
	declared, err := t.listed.ConvertToTable(ctx, hub, options)
	if err != nil {
		return nil, err
	}
	if len(t.kind.Columns) > 0 {
		out = withColumns(out, declared, t.kind)
	}
	if t.order != nil {
		out.Rows = sortedLike(out.Rows, declared.Rows, t.order)
	}
	return out, nil
}

// sortedLike returns the rows in the order of the objects of other rows, which are those of the hub, in the same places.
func sortedLike(rows, hub []metav1.TableRow, order func(a, b runtime.Object) int) []metav1.TableRow {
	places := make([]int, len(rows))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int { return order(hub[a].Object.Object, hub[b].Object.Object) })
	sorted := make([]metav1.TableRow, len(rows))
	for i, place := range places {
		sorted[i] = rows[place]
	}
	return sorted
}

// withColumns appends the columns of the kind in another table of the same objects, in the same order.
func withColumns(table, other *metav1.Table, k *define.Kind) *metav1.Table {
	from := 1 // behind the name
	if k.WithoutName {
		from = 0
	}
	to := from + len(k.Columns)
	if len(table.ColumnDefinitions) > 0 {
		table.ColumnDefinitions = slices.Concat(table.ColumnDefinitions, other.ColumnDefinitions[from:to])
	}
	for i := range table.Rows {
		table.Rows[i].Cells = append(table.Rows[i].Cells, other.Rows[i].Cells[from:to]...)
	}
	return table
}
