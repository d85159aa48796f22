package managed

import (
	"encoding/binary"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// overlay applies a configuration to a copy of the Go value that the live object is, without a document between them. That is
// for configurations of scalars in structs and of entries of maps of strings, which their manager has not applied before, or
// with the same fields: nothing has to be pruned then. Forced, it takes over what others own. If it fails, nothing
// has changed.
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
	if unchanged {
		obj = live.DeepCopyObject()
	} else {
		if obj, err = m.laidOver(c, live, old, document.Object); err != nil {
			return nil, err
		}
	}
	return m.applied(obj, entries, application{manager: manager, own: own, configured: configured, comparison: c, unchanged: unchanged, force: force})
}

// errUpstreams says that only upstream's manager can apply a configuration, or say what is wrong.
var errUpstreams = errors.New("upstream has to apply it")

// entriesOf reads what managers own of an object that one applies to, and which of it is that one's, -1 if none. It fails if
// something may have to be removed of what that one has applied before.
func (m *Manager) entriesOf(live runtime.Object, manager string, configured *owned) (entries []entry, own int, err error) {
	was, err := meta.Accessor(live)
	if err != nil || len(was.GetManagedFields()) == 0 || manager == "" || !utf8.ValidString(manager) {
		return nil, 0, errUpstreams // what an object has of which nobody owns anything becomes that of a manager of its own
	}
	entries, ok := m.entries(nil, was.GetManagedFields())
	if !ok {
		return nil, 0, errUpstreams
	}
	own = slices.IndexFunc(entries, func(e entry) bool { return e.is(manager, metav1.ManagedFieldsOperationApply, "") })
	if own >= 0 && !configured.set.Equals(entries[own].set) {
		return nil, 0, errUpstreams
	}
	return entries, own, nil
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

// laidOver returns a copy of a live object with what a configuration says in it, and collects what that changes.
func (m *Manager) laidOver(c *comparison, live runtime.Object, old reflect.Value, configuration map[string]any) (runtime.Object, error) {
	changed, err := m.versioned(live.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	if !m.readback.alike(changed) {
		return nil, errUnknown
	}
	if err := m.tree.lay(changed, configuration); err != nil {
		return nil, err
	}
	obj, ok := changed.Addr().Interface().(runtime.Object)
	if !ok || m.Documents != nil && m.Documents(obj) {
		return nil, errUnknown
	}
	if err := c.said(m.tree, old, changed, configuration); err != nil {
		return nil, err
	}
	if !c.removed.Empty() {
		return nil, errUnknown
	}
	if m.filter != nil && !c.changed.Empty() {
		c.changed = m.filter.Filter(c.changed)
	}
	m.Defaulter.Default(obj)
	return m.Convertor.ConvertToVersion(obj, schema.GroupVersion{Group: m.Kind.Group, Version: runtime.APIVersionInternal})
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
	m.tree.fieldsOf(set, make(fieldpath.Path, 0, 16), configuration)
	if m.filter != nil {
		set = m.filter.Filter(set)
	}
	if set = set.Difference(m.never); set.Empty() {
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

// form appends which fields a configuration has, which is all that what its manager owns depends on. It is false if it has
// others than those that are laid over objects.
func (n *tree) form(to []byte, configuration map[string]any) ([]byte, bool) {
	found := 0
	for i := range n.fields {
		f := &n.fields[i]
		v, ok := configuration[f.key()]
		if !ok {
			continue
		}
		if f.index == nil {
			return to, false
		}
		found++
		to = binary.AppendUvarint(to, uint64(i)+1)
		switch f.tree.kind {
		case scalar:
			ok = f.tree.holds(v)
		case record:
			inner, isMap := v.(map[string]any)
			if to, ok = f.tree.form(to, inner); !isMap {
				return to, false
			}
		case dictionary:
			inner, isMap := v.(map[string]any)
			if !f.tree.plain || !isMap || len(inner) == 0 {
				return to, false
			}
			to = binary.AppendUvarint(to, uint64(len(inner)))
			for _, key := range slices.Sorted(maps.Keys(inner)) {
				if _, ok = inner[key].(string); !ok {
					return to, false
				}
				to = append(binary.AppendUvarint(to, uint64(len(key))), key...)
			}
		default:
			ok = false
		}
		if !ok {
			return to, false
		}
	}
	return append(to, 0), found > 0 && found == len(configuration) // an empty one is owned itself
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
func (n *tree) fieldsOf(set *fieldpath.Set, path fieldpath.Path, configuration map[string]any) {
	for i := range n.fields {
		f := &n.fields[i]
		v, ok := configuration[f.key()]
		if !ok {
			continue
		}
		at := append(path, f.name)
		switch inner, _ := v.(map[string]any); f.tree.kind {
		case record:
			f.tree.fieldsOf(set, at, inner)
		case dictionary:
			for key := range inner {
				set.Insert(append(at, fieldpath.FieldNameElement(key)))
			}
		default:
			set.Insert(at)
		}
	}
}

// says says whether a struct has all that a configuration has.
func (n *tree) says(v reflect.Value, configuration map[string]any) bool {
	for i := range n.fields {
		f := &n.fields[i]
		said, ok := configuration[f.key()]
		if !ok {
			continue
		}
		field := v.FieldByIndex(f.index)
		if f.entry.CanOmit(field) {
			return false
		}
		field, null := follow(field)
		if null {
			return false
		}
		switch inner, _ := said.(map[string]any); f.tree.kind {
		case record:
			if !f.tree.says(field, inner) {
				return false
			}
		case dictionary:
			m, ok := field.Interface().(map[string]string)
			if !ok {
				return false
			}
			for key, s := range inner {
				if is, ok := m[key]; !ok || is != s {
					return false
				}
			}
		default:
			if !isScalar(field, said) {
				return false
			}
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

// lay sets what a configuration says in a struct. It fails if more than that would be written of the struct then, or less.
func (n *tree) lay(v reflect.Value, configuration map[string]any) error {
	for i := range n.fields {
		f := &n.fields[i]
		said, ok := configuration[f.key()]
		if !ok {
			continue
		}
		field := v.FieldByIndex(f.index)
		_, null := follow(field)
		isNew := null || f.entry.CanOmit(field)
		to := field
		for to.Kind() == reflect.Pointer {
			if to.IsNil() {
				to.Set(reflect.New(to.Type().Elem()))
			}
			to = to.Elem()
		}
		switch inner, _ := said.(map[string]any); f.tree.kind {
		case record:
			if isNew && f.tree.writesZeros() {
				return errUnknown
			}
			if err := f.tree.lay(to, inner); err != nil {
				return err
			}
		case dictionary:
			if to.IsNil() {
				to.Set(reflect.MakeMapWithSize(to.Type(), len(inner)))
			}
			m, ok := to.Interface().(map[string]string)
			if !ok {
				return errUnknown
			}
			for key, s := range inner {
				m[key] = s.(string)
			}
		default:
			switch said := said.(type) {
			case string:
				to.SetString(said)
			case bool:
				to.SetBool(said)
			case int64:
				to.SetInt(said)
			}
		}
		if f.entry.CanOmit(field) {
			return errUnknown // the configuration has it
		}
	}
	return nil
}

// writesZeros says whether an empty struct is written with fields.
func (n *tree) writesZeros() bool {
	return slices.ContainsFunc(n.fields, func(f treeField) bool { return f.zero.IsValid() })
}

// said compares structs of which one has been laid over with a configuration.
func (c *comparison) said(n *tree, l, r reflect.Value, configuration map[string]any) error {
	for i := range n.fields {
		f := &n.fields[i]
		said, ok := configuration[f.key()]
		if !ok {
			continue
		}
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
