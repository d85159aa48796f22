// Package managed maintains the managed fields of objects as the field manager of apimachinery does, byte for byte, but
// without most of its work. It compares objects by a tree of their Go type and schema that is built once, rewrites only
// entries that have changed, and parses equal entries of many objects once. A case that is not certain to have the same
// result is delegated to apimachinery.
package managed

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Config holds the arguments of a field manager.
type Config struct {
	Types     managedfields.TypeConverter
	Convertor runtime.ObjectConvertor
	Defaulter runtime.ObjectDefaulter
	Creater   runtime.ObjectCreater
	Kind      schema.GroupVersionKind
	Reset     map[fieldpath.APIVersion]fieldpath.Filter
	// Documents reports whether Types treats an object as a document instead of as a Go value. Nil means never.
	Documents func(runtime.Object) bool
}

// Manager records the owners of the fields of objects of one kind, in one version and for the main endpoint. Its
// methods may be called concurrently.
type Manager struct {
	Config
	upstream   *managedfields.FieldManager
	types      managedfields.TypeConverter // the converter of the upstream manager
	tree       *tree                       // nil if every call is delegated
	unknown    error                       // the reason why tree is nil
	sets       sets
	createSets sets // sets of fields that managers own after a create, by the shape of the object
	applySets  sets // sets of fields that managers own after an apply, by the form of the configuration
	overlays   bool // whether overlay may be used
	readback   *readback
	single     bool // whether objects have managed fields in one place only, not also in templates
	filter     fieldpath.Filter
	unownable  *fieldpath.Set // fields that no manager owns
	// managedFields is the path of the managed fields.
	managedFields fieldpath.Path
}

// maxUpdaters is the number of updating managers that apimachinery keeps apart; it merges older ones.
const maxUpdaters = 10

// New returns a manager. It returns an error if apimachinery cannot make a field manager.
func New(c Config) (*Manager, error) {
	hub := schema.GroupVersion{Group: c.Kind.Group, Version: runtime.APIVersionInternal}
	types := &trustingConverter{TypeConverter: c.Types}
	upstream, err := managedfields.NewDefaultFieldManager(types, c.Convertor, c.Defaulter, c.Creater, c.Kind, hub, "", c.Reset)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", c.Kind, err)
	}
	m := &Manager{Config: c, upstream: upstream, types: types, filter: c.Reset[fieldpath.APIVersion(c.Kind.GroupVersion().String())],
		managedFields: fieldpath.MakePathOrDie("metadata", "managedFields")}
	m.unownable = fieldpath.NewSet(
		fieldpath.MakePathOrDie("apiVersion"),
		fieldpath.MakePathOrDie("kind"),
		fieldpath.MakePathOrDie("metadata"),
	)
	for _, field := range []string{"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
		"managedFields", "resourceVersion"} {
		m.unownable.Insert(fieldpath.MakePathOrDie("metadata", field))
	}
	empty, err := c.Creater.New(c.Kind)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", c.Kind, err)
	}
	if _, isDocument := empty.(runtime.Unstructured); isDocument {
		return m, nil
	}
	if _, err := meta.Accessor(empty); err != nil {
		return m, nil
	}
	empty.GetObjectKind().SetGroupVersionKind(c.Kind)
	sample, err := c.Types.ObjectToTyped(empty)
	if err != nil {
		return m, nil // apimachinery reports it at each request
	}
	p := treeBuilder{schema: sample.Schema(), trees: map[treeKey]*tree{}}
	t, err := p.build(reflect.TypeOf(empty), sample.TypeRef())
	if err == nil && t.kind == record {
		m.tree, m.single = t, t.metadata() == 1
		m.readback, m.overlays = newReadback(t.goType, map[reflect.Type]*readback{})
		if m.single {
			types.Manager = m
		}
	}
	m.unknown = err
	return m, nil
}

// Upstream returns the field manager of apimachinery.
func (m *Manager) Upstream() *managedfields.FieldManager { return m.upstream }

// UpdateNoErrors sets the managed fields of changed and returns it, like the method of managedfields.FieldManager.
func (m *Manager) UpdateNoErrors(live, changed runtime.Object, manager string) runtime.Object {
	if m.tree != nil && m.update(live, changed, manager) {
		return changed
	}
	return m.upstream.UpdateNoErrors(live, changed, manager)
}

// Apply merges the configuration of a manager into an object, like the method of managedfields.FieldManager. Its errors
// are those of that method.
func (m *Manager) Apply(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	if m.tree != nil {
		obj, err := m.overlay(live, applied, manager, force)
		if errors.Is(err, errUnknown) {
			obj, err = m.merge(live, applied, manager, force)
		}
		if err == nil {
			return obj, nil
		}
	}
	return m.upstream.Apply(live, applied, manager, force)
}

// trustingConverter makes apimachinery's field manager skip the validation of objects whose Go type can hold only valid
// values.
type trustingConverter struct {
	managedfields.TypeConverter
	*Manager // nil if objects must be validated
}

// ObjectToTyped implements managedfields.TypeConverter.
func (u *trustingConverter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if u.Manager == nil || len(options) != 1 || options[0] != typed.AllowDuplicates ||
		reflect.TypeOf(obj) != reflect.PointerTo(u.tree.goType) ||
		obj.GetObjectKind().GroupVersionKind() != u.Kind ||
		u.Documents != nil && u.Documents(obj) {
		return u.TypeConverter.ObjectToTyped(obj, options...)
	}
	m, err := meta.Accessor(obj)
	if err != nil || !areObjects(m.GetManagedFields()) {
		return u.TypeConverter.ObjectToTyped(obj, options...)
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 what the type can hold is valid, which is what the tree is made of
	return typed.AsTypedUnvalidated(v, u.tree.schema, u.tree.ref), nil
}

// areObjects reports whether the fields of all managers are JSON objects.
func areObjects(fields []metav1.ManagedFieldsEntry) bool {
	for i := range fields {
		if f := fields[i].FieldsV1; f != nil && !bytes.HasPrefix(f.GetRawBytes(), []byte("{")) {
			return false
		}
	}
	return true
}

// Known reports whether managed fields are certainly valid, because they have been read or written before. It may
// return false for valid fields.
func (m *Manager) Known(fields []metav1.ManagedFieldsEntry) bool {
	for i := range fields {
		e := &fields[i]
		if e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate ||
			e.FieldsType != "FieldsV1" || e.APIVersion == "" || e.FieldsV1 == nil || m.sets.get(e.FieldsV1.GetRawBytes()) == nil {
			return false
		}
	}
	return true
}

// entry is one entry of the managed fields.
type entry struct {
	metav1.ManagedFieldsEntry
	*ownedFields
	original *ownedFields // the set as it was read; nil if the entry is new
}

func (e *entry) matches(manager string, operation metav1.ManagedFieldsOperationType, subresource string) bool {
	return e.Manager == manager && e.Operation == operation && e.Subresource == subresource
}

func (e *entry) isUpdateOf(manager string) bool {
	return e.matches(manager, metav1.ManagedFieldsOperationUpdate, "")
}

// update sets the managed fields and reports whether it could. If it returns false, it has changed nothing that the
// upstream manager does not set.
func (m *Manager) update(live, changed runtime.Object, manager string) bool {
	if manager == "" {
		manager = "unknown"
	}
	was, err := meta.Accessor(live)
	if err != nil {
		return false
	}
	is, err := meta.Accessor(changed)
	if err != nil {
		return false
	}
	entries, ok := m.entries(is.GetManagedFields(), was.GetManagedFields())
	if !ok {
		return false
	}
	if len(entries) == 0 && len(was.GetUID()) > 0 {
		is.SetManagedFields(nil) // an object without managed fields keeps none
		return true
	}
	shape := m.shape(live, changed, entries)
	if o := m.createSets.get(shape); shape != nil && o != nil {
		entries, ok := m.addGained(entries, manager, o)
		if !ok {
			return false
		}
		fields, err := m.encodeEntries(entries)
		if err != nil {
			return false
		}
		is.SetManagedFields(fields)
		return true
	}
	c, err := m.compare(live, changed)
	if err != nil {
		return false
	}

	set := c.changed
	if !set.Empty() {
		set = m.ownable(set)
	}
	// A manager that changes fields of its own keeps the set that it has, which is the most frequent update.
	keeps := -1
	if !set.Empty() && set.Equals(c.changed) {
		keeps = slices.IndexFunc(entries, func(e entry) bool { return e.isUpdateOf(manager) && hasAll(e.set, set) })
	}
	kept := entries[:0]
	for i := range entries {
		e := &entries[i]
		if i != keeps {
			e.lose(c.changed)
		}
		e.lose(c.removed)
		if !e.set.Empty() {
			kept = append(kept, *e)
		}
	}
	entries = kept
	if !set.Empty() {
		if entries, ok = m.addGained(entries, manager, &ownedFields{set: set}); !ok {
			return false
		}
	}
	updaters := 0
	for i := range entries {
		if entries[i].Operation == metav1.ManagedFieldsOperationUpdate {
			updaters++
		}
	}
	if updaters > maxUpdaters {
		return false
	}
	fields, err := m.encodeEntries(entries)
	if err != nil {
		return false
	}
	is.SetManagedFields(fields)
	if shape != nil && len(entries) == 1 {
		m.createSets.put(shape, entries[0].ownedFields)
	}
	return true
}

// shape returns an encoding of the fields that an object to be created has, as far as managers own fields, but not of
// their values. The fields that its manager owns depend on nothing else. It returns nil if the object is not created,
// has managed fields already, or has a list that tree.shape does not support.
func (m *Manager) shape(live, changed runtime.Object, entries []entry) []byte {
	// Converting an empty object to the version might set fields.
	if len(entries) > 0 || reflect.TypeOf(live) != reflect.PointerTo(m.tree.goType) || !reflect.ValueOf(live).Elem().IsZero() {
		return nil
	}
	v, err := m.versionedValue(changed)
	if err != nil {
		return nil
	}
	shape, ok := m.tree.shape(make([]byte, 0, 512), v)
	if !ok {
		return nil
	}
	return shape
}

// encodeEntries returns entries as objects hold them, sorted like apimachinery's.
func (m *Manager) encodeEntries(entries []entry) ([]metav1.ManagedFieldsEntry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	fields := make([]metav1.ManagedFieldsEntry, len(entries))
	for i := range entries {
		e := &entries[i]
		if e.raw == nil && e.original != nil && e.set.Equals(e.original.set) {
			e.ownedFields = e.original
		}
		if e.raw == nil {
			o, err := encodeSet(e.set)
			if err != nil {
				return nil, err
			}
			e.ownedFields = o
			m.sets.put(o.raw, o) // the next request reads the same bytes
		}
		fields[i] = e.ManagedFieldsEntry
		fields[i].FieldsV1 = &metav1.FieldsV1{}
		fields[i].FieldsV1.SetRawBytes(bytes.Clone(e.raw)) // decoding into an object overwrites these bytes
	}
	slices.SortFunc(fields, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(
			cmp.Compare(a.Operation, b.Operation),
			cmp.Compare(seconds(a.Time), seconds(b.Time)),
			cmp.Compare(a.Manager, b.Manager),
			cmp.Compare(a.APIVersion, b.APIVersion),
			cmp.Compare(a.Subresource, b.Subresource),
		)
	})
	return fields, nil
}

func seconds(t *metav1.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}

// entries parses the managed fields of the changed object, or of the live one if it has none. It returns false if it
// does not support them.
func (m *Manager) entries(sent, stored []metav1.ManagedFieldsEntry) ([]entry, bool) {
	if sent != nil && len(sent) == 0 || len(sent) == 1 && reflect.DeepEqual(sent[0], metav1.ManagedFieldsEntry{}) {
		return nil, true // the request resets the managed fields
	}
	if len(sent) == 0 {
		sent = stored
	}
	if !areObjects(stored) {
		return nil, false
	}
	version := m.Kind.GroupVersion()
	entries := make([]entry, 0, len(sent))
	for i := range sent {
		e := &sent[i]
		switch {
		case e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate,
			e.FieldsType != "FieldsV1", !isVersion(e.APIVersion, version), !utf8.ValidString(e.Manager), !utf8.ValidString(e.Subresource):
			return nil, false
		}
		for j := range entries {
			if entries[j].matches(e.Manager, e.Operation, e.Subresource) {
				return nil, false
			}
		}
		o, err := m.sets.read(e.FieldsV1, m.tree)
		if err != nil {
			return nil, false
		}
		if o.set.Empty() || o.set.Has(m.managedFields) {
			return nil, false
		}
		entries = append(entries, entry{*e, o, o})
	}
	return entries, true
}

// isVersion reports whether a string equals a group version.
func isVersion(s string, gv schema.GroupVersion) bool {
	if gv.Group == "" {
		return s == gv.Version
	}
	g := len(gv.Group)
	return len(s) == g+1+len(gv.Version) && s[:g] == gv.Group && s[g] == '/' && s[g+1:] == gv.Version
}

// compare compares the objects of an update, without the fields that the endpoint resets.
func (m *Manager) compare(live, changed runtime.Object) (*comparison, error) {
	old, err := m.versionedValue(live)
	if err != nil {
		return nil, err
	}
	updated, err := m.versionedValue(changed)
	if err != nil {
		return nil, err
	}
	c := newComparison()
	if err := c.objects(m.tree, old, updated); err != nil {
		return nil, err
	}
	if m.filter != nil {
		if !c.changed.Empty() {
			c.changed = m.filter.Filter(c.changed)
		}
		if !c.removed.Empty() {
			c.removed = m.filter.Filter(c.removed)
		}
	}
	return c, nil
}

func (m *Manager) versionedValue(obj runtime.Object) (reflect.Value, error) {
	obj, err := m.Convertor.ConvertToVersion(obj, m.Kind.GroupVersion())
	if err != nil {
		return reflect.Value{}, err
	}
	if _, isDocument := obj.(*unstructured.Unstructured); isDocument || m.Documents != nil && m.Documents(obj) {
		return reflect.Value{}, errUnknown
	}
	v := reflect.ValueOf(obj).Elem()
	if v.Type() != m.tree.goType {
		return reflect.Value{}, errUnknown
	}
	return v, nil
}

// lose removes fields from an entry: those that another manager has set, or that no longer exist.
func (e *entry) lose(fields *fieldpath.Set) {
	if hasAny(e.set, fields) {
		e.ownedFields = &ownedFields{set: e.set.Difference(fields)}
	}
}

// hasAll reports whether a set contains all members of another one, which is small.
func hasAll(set, small *fieldpath.Set) bool {
	all := true
	small.Iterate(func(p fieldpath.Path) { all = all && set.Has(p) })
	return all
}

// hasAny reports whether a set contains a member of another one, which is small.
func hasAny(set, small *fieldpath.Set) bool {
	some := false
	small.Iterate(func(p fieldpath.Path) { some = some || set.Has(p) })
	return some
}

// addGained adds the set fields to the manager of an update.
func (m *Manager) addGained(entries []entry, manager string, gained *ownedFields) ([]entry, bool) {
	if !utf8.ValidString(manager) {
		return nil, false
	}
	at := slices.IndexFunc(entries, func(e entry) bool { return e.isUpdateOf(manager) })
	switch {
	case at < 0:
		at = len(entries)
		entries = append(entries, entry{ManagedFieldsEntry: metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.Kind.GroupVersion().String(), FieldsType: "FieldsV1",
		}, ownedFields: gained})
	case !hasAll(entries[at].set, gained.set):
		entries[at].ownedFields = &ownedFields{set: gained.set.Union(entries[at].set)}
	}
	entries[at].Time = &metav1.Time{Time: time.Now().UTC()}
	return entries, true
}

// ownable returns the fields of a set that managers may own.
func (m *Manager) ownable(set *fieldpath.Set) *fieldpath.Set {
	if m.filter != nil {
		set = m.filter.Filter(set)
	}
	return set.Difference(m.unownable)
}
