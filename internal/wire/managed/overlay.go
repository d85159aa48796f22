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

// overlay applies a configuration to a copy of the Go value that the live object is, without a document of all of it between them:
// structs field by field and maps of strings key by key, and of all else structured-merge-diff merges what the configuration
// says. That is for configurations that their manager has not applied before, or with the same fields: nothing has to be pruned
// then. Forced, it takes over what others own. If it fails, nothing has changed.
func (m *Manager) overlay(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	document, ok := applied.(*unstructured.Unstructured)
	if !ok || !m.overlays || document.GroupVersionKind() != m.Kind {
		return nil, errUnknown
	}
	configured, ok := m.configured(document.Object)
	if !ok {
		return nil, errUnknown
	}
	entries, own, err := m.entriesOf(live, manager, configured)
	if err != nil {
		return nil, err
	}
	old, err := m.versioned(live)
	if err != nil {
		return nil, err
	}
	if !m.valid(old) {
		return nil, errUnknown
	}
	var obj runtime.Object
	c, unchanged := newComparison(), m.tree.says(old, document.Object)
	if !unchanged {
		if obj, unchanged, err = m.laidOver(c, live, old, document.Object); err != nil {
			return nil, err
		}
	}
	if unchanged {
		obj = live.DeepCopyObject()
	}
	return m.applied(
		obj,
		entries,
		application{manager: manager, own: own, configured: configured, comparison: c, unchanged: unchanged, force: force},
	)
}

// errUpstreams says that only upstream's manager can apply a configuration, or say what is wrong.
var errUpstreams = errors.New("upstream has to apply it")

// entriesOf reads what managers own of an object that one applies to, and which of it is that one's, -1 if none. It fails if
// something may have to be removed of what that one has applied before.
func (m *Manager) entriesOf(live runtime.Object, manager string, configured *owned) (entries []entry, own int, err error) {
	was, err := meta.Accessor(live)
	if err != nil || len(was.GetManagedFields()) == 0 || manager == "" || !utf8.ValidString(manager) {
		return nil, 0, errUpstreams // what an object without managed fields has becomes that of a manager of its own
	}
	entries, ok := m.entries(nil, was.GetManagedFields())
	if !ok {
		return nil, 0, errUpstreams
	}
	own = slices.IndexFunc(entries, func(e entry) bool { return e.is(manager, metav1.ManagedFieldsOperationApply, "") })
	if own >= 0 && (!configured.set.Equals(entries[own].set) || hasBareItem(configured.set)) {
		return nil, 0, errUpstreams
	}
	return entries, own, nil
}

// hasBareItem says whether an item of a list is in a set without any of its fields, since all that tells it apart has defaults. As
// its manager owns none of what is written of it, upstream removes it when it is applied again, if only every other time.
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

// application is what has been applied to an object.
type application struct {
	*comparison
	manager    string
	own        int // which entry the manager has; -1 for none
	configured *owned
	unchanged  bool
	force      bool
}

// applied sets the managed fields of an object that something has been applied to. It fails if upstream has more to do.
func (m *Manager) applied(obj runtime.Object, entries []entry, a application) (runtime.Object, error) {
	is, err := meta.Accessor(obj)
	if err != nil || a.manager == "kubectl" && is.GetAnnotations()[lastApplied] != "" {
		return nil, errUpstreams
	}
	now := &metav1.Time{Time: time.Now().UTC()}
	kept := make([]entry, 0, len(entries)+1)
	for i, e := range entries {
		switch {
		case i == a.own:
			if !a.unchanged {
				e.Time = now
			}
		case !a.changed.Empty():
			if !a.force && !e.set.Intersection(a.changed).Empty() {
				return nil, errUpstreams // a conflict
			}
			e.lose(a.comparison)
		}
		if !e.set.Empty() {
			kept = append(kept, e)
		}
	}
	if a.own < 0 {
		e := entry{ManagedFieldsEntry: metav1.ManagedFieldsEntry{
			Manager: a.manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: m.Kind.GroupVersion().String(), FieldsType: "FieldsV1",
		}, owned: a.configured}
		if !a.unchanged {
			e.Time = now
		}
		kept = append(kept, e)
	}
	fields, err := m.written(kept)
	if err != nil {
		return nil, errUpstreams
	}
	is.SetManagedFields(fields)
	return obj, nil
}

// lastApplied is the annotation in which kubectl keeps what it applied without the server. Upstream keeps it up to date.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// valid says whether upstream takes a live object as valid.
func (m *Manager) valid(v reflect.Value) bool {
	if m.single {
		return true // which its type and its managed fields say
	}
	obj, ok := v.Addr().Interface().(runtime.Object)
	if !ok {
		return false
	}
	_, err := m.types.ObjectToTyped(obj, typed.AllowDuplicates)
	return err == nil
}

// laidOver returns a copy of a live object with what a configuration says in it, and collects what that changes, if anything.
func (m *Manager) laidOver(
	c *comparison,
	live runtime.Object,
	old reflect.Value,
	configuration map[string]any,
) (obj runtime.Object, unchanged bool, err error) {
	changed, err := m.versioned(live.DeepCopyObject())
	if err != nil {
		return nil, false, err
	}
	if !m.readback.alike(changed) {
		return nil, false, errUnknown
	}
	ordered, err := m.tree.lay(changed, configuration)
	if err != nil {
		return nil, false, err
	}
	obj, ok := changed.Addr().Interface().(runtime.Object)
	if !ok || m.Documents != nil && m.Documents(obj) {
		return nil, false, errUnknown
	}
	if err := c.said(m.tree, old, changed, configuration); err != nil {
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

// configured is what the manager of a configuration owns. It is false if the configuration cannot be laid over objects.
func (m *Manager) configured(configuration map[string]any) (*owned, bool) {
	// What upstream reads of these is not always what they say.
	if configuration["apiVersion"] != m.Kind.GroupVersion().String() || configuration["kind"] != m.Kind.Kind {
		return nil, false
	}
	form, ok := m.tree.form(make([]byte, 0, 256), configuration)
	if !ok {
		return nil, false
	}
	if o := m.forms.get(form); o != nil {
		return o, true
	}
	set := &fieldpath.Set{}
	if err := m.tree.fieldsOf(set, make(fieldpath.Path, 0, 16), configuration); err != nil {
		return nil, false
	}
	if set = m.ownable(set); set.Empty() {
		return nil, false
	}
	o, err := write(set)
	if err != nil {
		return nil, false
	}
	m.forms.put(form, o)
	m.sets.put(o.raw, o)
	return o, true
}

// said iterates over the fields that a configuration has of a struct, in the order of the struct, and what it says of each.
func (n *tree) said(configuration map[string]any) iter.Seq2[int, any] {
	return func(yield func(int, any) bool) {
		for i := range n.fields {
			if v, ok := configuration[n.fields[i].key()]; ok && !yield(i, v) {
				return
			}
		}
	}
}

// form appends which fields a configuration has, which is all that what its manager owns depends on. It is false if it has
// others than those that are laid over objects.
func (n *tree) form(to []byte, configuration map[string]any) ([]byte, bool) {
	found := 0
	for i, v := range n.said(configuration) {
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
				to, ok = f.tree.form(to, inner)
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
			to, ok = f.tree.part(to, v)
		}
		if !ok {
			return to, false
		}
	}
	return append(to, 0), found > 0 && found == len(configuration) // an empty one is owned itself
}

// isPlain says whether a tree is a map whose entries are set one by one.
func (n *tree) isPlain() bool { return n.kind == dictionary && n.plain }

// part appends which fields there are in what structured-merge-diff merges, and what items of lists are told apart by. It is false
// if there is null or what the schema has not: the rest of what is wrong is found out when it is merged.
func (n *tree) part(to []byte, v any) ([]byte, bool) {
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
		for i, v := range n.said(inner) {
			found++
			if to, ok = n.fields[i].tree.part(binary.AppendUvarint(to, uint64(i)+1), v); !ok {
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
			if to, ok = n.elem.part(to, inner[key]); !ok {
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
			if to, ok = n.elem.part(to, item); !ok {
				return to, false
			}
		}
		return to, true
	}
	return to, false
}

// appendKey appends a value that an item is told apart by.
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

// holds says whether a scalar can be what a configuration says, and is written as that.
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

// fieldsOf puts the fields of a configuration into a set.
func (n *tree) fieldsOf(set *fieldpath.Set, path fieldpath.Path, configuration map[string]any) error {
	for i, v := range n.said(configuration) {
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

// says says whether a struct surely has all that a configuration has.
func (n *tree) says(v reflect.Value, configuration map[string]any) bool {
	for i, said := range n.said(configuration) {
		f := &n.fields[i]
		field := v.FieldByIndex(f.index)
		if f.entry.CanOmit(field) {
			return false
		}
		field, null := follow(field)
		if null {
			return false
		}
		inner, _ := said.(map[string]any)
		switch {
		case f.tree.kind == record:
			if !f.tree.says(field, inner) {
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

// lay sets what a configuration says in a struct. It fails if more than that would be written of the struct then, or less. It is
// false if what is merged has another order than before, or has changed.
func (n *tree) lay(v reflect.Value, configuration map[string]any) (ordered bool, err error) {
	ordered = true
	for i, said := range n.said(configuration) {
		f := &n.fields[i]
		field := v.FieldByIndex(f.index)
		absent := f.entry.CanOmit(field)
		_, null := follow(field)
		inner, _ := said.(map[string]any)
		switch {
		case f.tree.kind == record:
			if (null || absent) && f.tree.writesZeros() {
				return false, errUnknown
			}
			same, err := f.tree.lay(settable(field), inner)
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
			same, err := n.layPart(f, field, absent, said)
			if err != nil {
				return false, err
			}
			ordered = ordered && same
		}
		if f.entry.CanOmit(field) {
			return false, errUnknown // the configuration has it
		}
	}
	return ordered, nil
}

// settable follows pointers, and makes what they point to.
func settable(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}

// layPart has structured-merge-diff merge a field, and sets what it becomes. It says whether that is what it was.
func (n *tree) layPart(f *treeField, field reflect.Value, absent bool, said any) (same bool, err error) {
	t := f.tree
	configuration, err := typed.AsTyped(value.NewValueInterface(said), t.schema, t.ref)
	if err != nil {
		return false, errUnknown // upstream says where in the object
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
		return false, errUnknown // a document has more of it, or other forms
	}
	same = was != nil && value.Equals(was, merged.AsValue())
	field.Set(read)
	return same, nil
}

// writesZeros says whether an empty struct is written with fields.
func (n *tree) writesZeros() bool {
	return slices.ContainsFunc(n.fields, func(f treeField) bool { return f.zero.IsValid() })
}

// said compares structs of which one has been laid over with a configuration.
func (c *comparison) said(n *tree, l, r reflect.Value, configuration map[string]any) error {
	for i, said := range n.said(configuration) {
		f := &n.fields[i]
		lf, rf := l.FieldByIndex(f.index), r.FieldByIndex(f.index)
		absent := f.entry.CanOmit(lf)
		old, null := follow(lf)
		if f.tree.kind != record || absent || null {
			if err := c.child(f.name, f.tree, lf, rf, absent, false); err != nil {
				return err
			}
			continue
		}
		changed, _ := follow(rf)
		c.path = append(c.path, f.name)
		err := c.said(f.tree, old, changed, said.(map[string]any))
		c.path = c.path[:len(c.path)-1]
		if err != nil {
			return err
		}
	}
	return nil
}
