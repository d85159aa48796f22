package managed

import (
	"encoding/binary"
	"errors"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// overlay applies a configuration directly to a copy of the live Go value, without converting all of it to a document.
// It sets structs field by field and maps of strings key by key; other values are merged by structured-merge-diff, as
// far as the configuration has them. It handles configurations that are the first of their manager or have the same
// fields as its last one: then nothing must be pruned. With force, it takes fields over from other owners. If it
// returns an error, nothing has changed.
func (m *Manager) overlay(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	document, ok := applied.(*unstructured.Unstructured)
	if !ok || !m.overlays || document.GroupVersionKind() != m.Kind {
		return nil, errUnknown
	}
	configured, ok := m.configuredFields(document.Object)
	if !ok {
		return nil, errUnknown
	}
	entries, own, err := m.entriesOf(live, manager, configured)
	if err != nil {
		return nil, err
	}
	old, err := m.versionedValue(live)
	if err != nil {
		return nil, err
	}
	if !m.isValid(old) {
		return nil, errUnknown
	}
	var obj runtime.Object
	c, unchanged := newComparison(), m.tree.hasAll(old, document.Object)
	if !unchanged {
		if obj, unchanged, err = m.layOver(c, live, old, document.Object); err != nil {
			return nil, err
		}
	}
	if unchanged {
		obj = live.DeepCopyObject()
	}
	return m.recordApply(
		obj,
		entries,
		application{manager: manager, ownIndex: own, fields: configured, comparison: c, unchanged: unchanged, force: force},
	)
}

// errUpstreams reports that only apimachinery's manager can apply a configuration, or report its mistakes.
var errUpstreams = errors.New("upstream has to apply it")

// entriesOf parses the managed fields of an object that a manager applies to. own is the index of that manager's entry,
// -1 if there is none. It returns an error if fields from the manager's last configuration may have to be removed.
func (m *Manager) entriesOf(live runtime.Object, manager string, configured *ownedFields) (entries []entry, own int, err error) {
	was, err := meta.Accessor(live)
	if err != nil || len(was.GetManagedFields()) == 0 || manager == "" || !utf8.ValidString(manager) {
		return nil, 0, errUpstreams // existing fields of an object without managed fields are assigned to a manager of their own
	}
	entries, ok := m.entries(nil, was.GetManagedFields())
	if !ok {
		return nil, 0, errUpstreams
	}
	own = slices.IndexFunc(entries, func(e entry) bool { return e.matches(manager, metav1.ManagedFieldsOperationApply, "") })
	if own >= 0 && (!configured.set.Equals(entries[own].set) || hasBareItem(configured.set)) {
		return nil, 0, errUpstreams
	}
	return entries, own, nil
}

// hasBareItem reports whether a set has a list item without any of its fields, because all its keys have defaults. Its
// manager owns none of its written fields, so apimachinery removes the item at every other apply.
func hasBareItem(set *fieldpath.Set) (bare bool) {
	set.Members.Iterate(func(pe fieldpath.PathElement) {
		inner, ok := set.Children.Get(pe)
		bare = bare || pe.Key != nil && (!ok || inner.Empty())
	})
	set.Children.Iterate(func(pe fieldpath.PathElement) {
		inner, _ := set.Children.Get(pe)
		bare = bare || hasBareItem(inner)
	})
	return bare
}

// application describes an applied configuration.
type application struct {
	*comparison
	manager   string
	ownIndex  int // index of the manager's entry; -1 for none
	fields    *ownedFields
	unchanged bool
	force     bool
}

// recordApply sets the managed fields of an object after an apply. It returns an error if apimachinery would do more.
func (m *Manager) recordApply(obj runtime.Object, entries []entry, a application) (runtime.Object, error) {
	is, err := meta.Accessor(obj)
	if err != nil || a.manager == "kubectl" && is.GetAnnotations()[lastApplied] != "" {
		return nil, errUpstreams
	}
	now := &metav1.Time{Time: time.Now().UTC()}
	kept := make([]entry, 0, len(entries)+1)
	for i, e := range entries {
		switch {
		case i == a.ownIndex:
			if !a.unchanged {
				e.Time = now
			}
		case !a.changed.Empty():
			if !a.force && hasAny(e.set, a.changed) {
				return nil, errUpstreams // a conflict
			}
			e.lose(a.changed)
			e.lose(a.removed)
		}
		if !e.set.Empty() {
			kept = append(kept, e)
		}
	}
	if a.ownIndex < 0 {
		e := entry{ManagedFieldsEntry: metav1.ManagedFieldsEntry{
			Manager: a.manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: m.Kind.GroupVersion().String(), FieldsType: "FieldsV1",
		}, ownedFields: a.fields}
		if !a.unchanged {
			e.Time = now
		}
		kept = append(kept, e)
	}
	fields, err := m.encodeEntries(kept)
	if err != nil {
		return nil, errUpstreams
	}
	is.SetManagedFields(fields)
	return obj, nil
}

// lastApplied is the annotation in which kubectl keeps the configuration of a client-side apply. apimachinery keeps it
// up to date.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// isValid reports whether apimachinery accepts a live object as valid.
func (m *Manager) isValid(v reflect.Value) bool {
	if m.single {
		return true // guaranteed by its type and its managed fields
	}
	obj, ok := v.Addr().Interface().(runtime.Object)
	if !ok {
		return false
	}
	_, err := m.types.ObjectToTyped(obj, typed.AllowDuplicates)
	return err == nil
}

// layOver returns a copy of a live object with a configuration set in it. It collects the changes in c, and reports
// whether there are none.
func (m *Manager) layOver(
	c *comparison,
	live runtime.Object,
	old reflect.Value,
	configuration map[string]any,
) (obj runtime.Object, unchanged bool, err error) {
	changed, err := m.versionedValue(live.DeepCopyObject())
	if err != nil {
		return nil, false, err
	}
	if !m.readback.alike(changed) {
		return nil, false, errUnknown
	}
	ordered, err := m.tree.overlay(changed, configuration)
	if err != nil {
		return nil, false, err
	}
	obj, ok := changed.Addr().Interface().(runtime.Object)
	if !ok || m.Documents != nil && m.Documents(obj) {
		return nil, false, errUnknown
	}
	if err := c.compareConfigured(m.tree, old, changed, configuration); err != nil {
		return nil, false, err
	}
	if !c.removed.Empty() {
		return nil, false, errUnknown
	}
	if ordered && c.changed.Empty() {
		return nil, true, nil
	}
	if m.filter != nil && !c.changed.Empty() {
		c.changed = m.filter.Filter(c.changed)
	}
	m.Defaulter.Default(obj)
	obj, err = m.Convertor.ConvertToVersion(obj, schema.GroupVersion{Group: m.Kind.Group, Version: runtime.APIVersionInternal})
	return obj, false, err
}

// configuredFields returns the fields that the manager of a configuration owns. It returns false if the configuration cannot
// be laid over objects.
func (m *Manager) configuredFields(configuration map[string]any) (*ownedFields, bool) {
	// apimachinery may read other values for these than the fields hold.
	if configuration["apiVersion"] != m.Kind.GroupVersion().String() || configuration["kind"] != m.Kind.Kind {
		return nil, false
	}
	form, ok := m.tree.appendForm(make([]byte, 0, 256), configuration)
	if !ok {
		return nil, false
	}
	if o := m.applySets.get(form); o != nil {
		return o, true
	}
	set := &fieldpath.Set{}
	if err := m.tree.fieldsOf(set, make(fieldpath.Path, 0, 16), configuration); err != nil {
		return nil, false
	}
	if set = m.ownable(set); set.Empty() {
		return nil, false
	}
	o, err := encodeSet(set)
	if err != nil {
		return nil, false
	}
	m.applySets.put(form, o)
	m.sets.put(o.raw, o)
	return o, true
}

// configuredFields yields the index of each struct field that a configuration sets, in the order of the struct, with the configured
// value.
func (n *tree) configuredFields(configuration map[string]any) iter.Seq2[int, any] {
	return func(yield func(int, any) bool) {
		for i := range n.fields {
			if v, ok := configuration[n.fields[i].key()]; ok && !yield(i, v) {
				return
			}
		}
	}
}

// appendForm appends an encoding of the fields of a configuration; the fields that its manager owns depend on nothing else.
// It returns false if the configuration has fields that cannot be laid over objects.
func (n *tree) appendForm(to []byte, configuration map[string]any) ([]byte, bool) {
	found := 0
	for i, v := range n.configuredFields(configuration) {
		f := &n.fields[i]
		if f.index == nil {
			return to, false
		}
		found++
		to = binary.AppendUvarint(to, uint64(i)+1)
		inner, isMap := v.(map[string]any)
		ok := isMap
		switch {
		case f.tree.kind == record:
			if ok {
				to, ok = f.tree.appendForm(to, inner)
			}
		case f.tree.isPlain():
			ok = len(inner) > 0
			to = binary.AppendUvarint(to, uint64(len(inner)))
			for _, key := range slices.Sorted(maps.Keys(inner)) {
				if _, isString := inner[key].(string); !isString {
					return to, false
				}
				to = append(binary.AppendUvarint(to, uint64(len(key))), key...)
			}
		case f.tree.kind == scalar && f.tree.holds(v):
			to, ok = append(to, 'v'), true
		default:
			items, isList := v.([]any)
			if isMap && len(inner) == 0 || isList && len(items) == 0 {
				return to, false
			}
			to, ok = f.tree.appendPart(to, v)
		}
		if !ok {
			return to, false
		}
	}
	return append(to, 0), found > 0 && found == len(configuration) // an empty configuration would be owned itself
}

// isPlain reports whether a tree is a map of strings, whose entries are set one by one.
func (n *tree) isPlain() bool { return n.kind == dictionary && n.plain }

// appendPart appends an encoding of the fields of a value that structured-merge-diff merges, and of the keys of list items.
// It returns false for null and for fields that the schema lacks; the merge detects all other mistakes.
func (n *tree) appendPart(to []byte, v any) ([]byte, bool) {
	switch n.kind {
	case scalar:
		switch v.(type) {
		case string, bool, int64, float64:
			return append(to, 'v'), true
		}
	case atomic:
		return append(to, 'v'), v != nil
	case record:
		inner, ok := v.(map[string]any)
		if !ok {
			return to, false
		}
		found := 0
		for i, v := range n.configuredFields(inner) {
			found++
			if to, ok = n.fields[i].tree.appendPart(binary.AppendUvarint(to, uint64(i)+1), v); !ok {
				return to, false
			}
		}
		return append(to, 0), found == len(inner)
	case dictionary:
		inner, ok := v.(map[string]any)
		if !ok {
			return to, false
		}
		to = binary.AppendUvarint(to, uint64(len(inner)))
		for _, key := range slices.Sorted(maps.Keys(inner)) {
			to = append(binary.AppendUvarint(to, uint64(len(key))), key...)
			if to, ok = n.elem.appendPart(to, inner[key]); !ok {
				return to, false
			}
		}
		return to, true
	case list:
		items, ok := v.([]any)
		if !ok {
			return to, false
		}
		to = binary.AppendUvarint(to, uint64(len(items)))
		for _, item := range items {
			if len(n.keys) == 0 {
				if to, ok = appendKey(to, item); !ok {
					return to, false
				}
			}
			inner, _ := item.(map[string]any)
			for _, entry := range n.keys {
				if to, ok = appendKey(to, inner[entry.JsonName]); !ok {
					return to, false
				}
			}
			if to, ok = n.elem.appendPart(to, item); !ok {
				return to, false
			}
		}
		return to, true
	}
	return to, false
}

// appendKey appends the value of an item's key.
func appendKey(to []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case nil:
		return append(to, 'n'), true
	case string:
		return append(binary.AppendUvarint(append(to, 's'), uint64(len(v))), v...), true
	case bool:
		return strconv.AppendBool(append(to, 'b'), v), true
	case int64:
		return binary.AppendVarint(append(to, 'i'), v), true
	}
	return to, false
}

func (f *treeField) key() string { return *f.name.FieldName }

// holds reports whether a Go scalar can hold a configured value and is written as the same value.
func (n *tree) holds(v any) bool {
	switch n.goType.Kind() {
	case reflect.String:
		_, ok := v.(string)
		return ok
	case reflect.Bool:
		_, ok := v.(bool)
		return ok
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, ok := v.(int64)
		return ok && !reflect.Zero(n.goType).OverflowInt(i)
	}
	return false
}

// fieldsOf adds the fields of a configuration to a set.
func (n *tree) fieldsOf(set *fieldpath.Set, path fieldpath.Path, configuration map[string]any) error {
	for i, v := range n.configuredFields(configuration) {
		f := &n.fields[i]
		at := append(path, f.name)
		inner, _ := v.(map[string]any)
		switch {
		case f.tree.kind == record:
			if err := f.tree.fieldsOf(set, at, inner); err != nil {
				return err
			}
		case f.tree.isPlain():
			for key := range inner {
				set.Insert(append(at, fieldpath.FieldNameElement(key)))
			}
		case f.tree.kind == scalar || f.tree.kind == atomic:
			set.Insert(at)
		default:
			//lint:ignore SA1019 what is wrong with it is found out when it is merged
			fields, err := typed.AsTypedUnvalidated(value.NewValueInterface(v), f.tree.schema, f.tree.ref).ToFieldSet()
			if err != nil {
				return err
			}
			(&comparison{path: at}).graft(set, fields)
		}
	}
	return nil
}

// hasAll reports whether a struct certainly has all fields and values of a configuration.
func (n *tree) hasAll(v reflect.Value, configuration map[string]any) bool {
	for i, said := range n.configuredFields(configuration) {
		f := &n.fields[i]
		field := v.FieldByIndex(f.index)
		if f.entry.CanOmit(field) {
			return false
		}
		field, null := dereference(field)
		if null {
			return false
		}
		inner, _ := said.(map[string]any)
		switch {
		case f.tree.kind == record:
			if !f.tree.hasAll(field, inner) {
				return false
			}
		case f.tree.isPlain():
			m, ok := field.Interface().(map[string]string)
			if !ok {
				return false
			}
			for key, s := range inner {
				if is, ok := m[key]; !ok || is != s {
					return false
				}
			}
		case f.tree.kind != scalar || !f.tree.holds(said) || !isScalar(field, said):
			return false
		}
	}
	return true
}

func isScalar(v reflect.Value, said any) bool {
	switch said := said.(type) {
	case string:
		return v.String() == said
	case bool:
		return v.Bool() == said
	case int64:
		return v.Int() == said
	}
	return false
}

// overlay sets the values of a configuration in a struct. It returns an error if the struct would then be written with more
// or fewer fields than the configuration adds. ordered is false if a merged value has changed or is in another order.
func (n *tree) overlay(v reflect.Value, configuration map[string]any) (ordered bool, err error) {
	ordered = true
	for i, said := range n.configuredFields(configuration) {
		f := &n.fields[i]
		field := v.FieldByIndex(f.index)
		absent := f.entry.CanOmit(field)
		_, null := dereference(field)
		inner, _ := said.(map[string]any)
		switch {
		case f.tree.kind == record:
			if (null || absent) && f.tree.writesZeros() {
				return false, errUnknown
			}
			same, err := f.tree.overlay(settable(field), inner)
			if err != nil {
				return false, err
			}
			ordered = ordered && same
		case f.tree.isPlain():
			to := settable(field)
			if to.IsNil() {
				to.Set(reflect.MakeMapWithSize(to.Type(), len(inner)))
			}
			m, ok := to.Interface().(map[string]string)
			if !ok {
				return false, errUnknown
			}
			for key, s := range inner {
				m[key] = s.(string)
			}
		case f.tree.kind == scalar && f.tree.holds(said):
			switch to := settable(field); said := said.(type) {
			case string:
				to.SetString(said)
			case bool:
				to.SetBool(said)
			case int64:
				to.SetInt(said)
			}
		default:
			if null && !absent {
				return false, errUnknown
			}
			same, err := n.overlayField(f, field, absent, said)
			if err != nil {
				return false, err
			}
			ordered = ordered && same
		}
		if f.entry.CanOmit(field) {
			return false, errUnknown // a configured field must be written
		}
	}
	return ordered, nil
}

// settable dereferences pointers and allocates nil ones.
func settable(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

// overlayField merges a field by structured-merge-diff and sets the result. It reports whether the value is unchanged.
func (n *tree) overlayField(f *treeField, field reflect.Value, absent bool, said any) (same bool, err error) {
	t := f.tree
	configuration, err := typed.AsTyped(value.NewValueInterface(said), t.schema, t.ref)
	if err != nil {
		return false, errUnknown // apimachinery reports the path of the error
	}
	var was value.Value
	if !absent {
		if was, err = t.value(field); err != nil {
			return false, errUnknown
		}
	}
	//lint:ignore SA1019 what the type can hold is valid, which is what the tree is made of
	merged, err := typed.AsTypedUnvalidated(was, t.schema, t.ref).Merge(configuration)
	if err != nil || merged.AsValue() == nil {
		return false, errUnknown
	}
	holder := reflect.New(n.goType)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
		map[string]any{f.key(): merged.AsValue().Unstructured()},
		holder.Interface(),
	); err != nil {
		return false, errUnknown
	}
	read := holder.Elem().FieldByIndex(f.index)
	is, err := t.value(read)
	if err != nil || !value.Equals(is, merged.AsValue()) {
		return false, errUnknown // the document has more fields, or other forms of values
	}
	same = was != nil && value.Equals(was, merged.AsValue())
	field.Set(read)
	return same, nil
}

// writesZeros reports whether an empty struct is written with fields.
func (n *tree) writesZeros() bool {
	return slices.ContainsFunc(n.fields, func(f treeField) bool { return f.zero.IsValid() })
}

// compareConfigured compares two structs in the fields of the configuration that one of them has been laid over with.
func (c *comparison) compareConfigured(n *tree, l, r reflect.Value, configuration map[string]any) error {
	for i, said := range n.configuredFields(configuration) {
		f := &n.fields[i]
		lf, rf := l.FieldByIndex(f.index), r.FieldByIndex(f.index)
		absent := f.entry.CanOmit(lf)
		old, null := dereference(lf)
		if f.tree.kind != record || absent || null {
			if err := c.child(f.name, f.tree, lf, rf, absent, false); err != nil {
				return err
			}
			continue
		}
		changed, _ := dereference(rf)
		c.path = append(c.path, f.name)
		err := c.compareConfigured(f.tree, old, changed, said.(map[string]any))
		c.path = c.path[:len(c.path)-1]
		if err != nil {
			return err
		}
	}
	return nil
}
