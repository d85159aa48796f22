// Package managed keeps the managed fields of objects as upstream's field manager does, byte for byte, without most of its
// work: objects are compared by a tree of their Go type and schema that is made once, what has not changed is not written
// anew, and what managers own is read once for all objects that have the same. Whatever is not certain to be the same is
// upstream's.
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

// Config is what upstream makes a field manager of.
type Config struct {
	Types     managedfields.TypeConverter
	Convertor runtime.ObjectConvertor
	Defaulter runtime.ObjectDefaulter
	Creater   runtime.ObjectCreater
	Kind      schema.GroupVersionKind
	Reset     map[fieldpath.APIVersion]fieldpath.Filter
	// Documents says whether Types takes an object for a document instead of the Go value that it is; nil is for never.
	Documents func(runtime.Object) bool
}

// Manager records who has set which fields of the objects of a kind, in a version and through its main endpoint. Its methods
// may be called concurrently.
type Manager struct {
	Config
	upstream *managedfields.FieldManager
	types    managedfields.TypeConverter // what upstream's has for Types
	tree     *tree                       // nil if upstream has to do it all
	unknown  error                       // says why there is none
	sets     sets
	created  sets // what managers own of objects that they create, by shapes
	forms    sets // what managers own of what they apply, by forms of configurations
	overlays bool // whether configurations can be laid over objects
	readback *readback
	single   bool // whether objects have managed fields of their own only, not of templates as well
	filter   fieldpath.Filter
	never    *fieldpath.Set // what no manager owns
	// managedFields are where those are.
	managedFields fieldpath.Path
}

// maxUpdaters is how many managers that update upstream keeps apart.
const maxUpdaters = 10

// New returns a manager.
func New(c Config) (*Manager, error) {
	hub := schema.GroupVersion{Group: c.Kind.Group, Version: runtime.APIVersionInternal}
	types := &unvalidated{TypeConverter: c.Types}
	upstream, err := managedfields.NewDefaultFieldManager(types, c.Convertor, c.Defaulter, c.Creater, c.Kind, hub, "", c.Reset)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", c.Kind, err)
	}
	m := &Manager{Config: c, upstream: upstream, types: types, filter: c.Reset[fieldpath.APIVersion(c.Kind.GroupVersion().String())],
		managedFields: fieldpath.MakePathOrDie("metadata", "managedFields")}
	m.never = fieldpath.NewSet(
		fieldpath.MakePathOrDie("apiVersion"),
		fieldpath.MakePathOrDie("kind"),
		fieldpath.MakePathOrDie("metadata"),
	)
	for _, field := range []string{"name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
		"managedFields", "resourceVersion"} {
		m.never.Insert(fieldpath.MakePathOrDie("metadata", field))
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
		return m, nil // upstream says so each time
	}
	p := planter{schema: sample.Schema(), made: map[planted]*tree{}}
	t, err := p.plant(reflect.TypeOf(empty), sample.TypeRef())
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

// Upstream is upstream's manager.
func (m *Manager) Upstream() *managedfields.FieldManager { return m.upstream }

// UpdateNoErrors is upstream's: it sets the managed fields of a changed object. What it returns is that object.
func (m *Manager) UpdateNoErrors(live, changed runtime.Object, manager string) runtime.Object {
	if m.tree != nil && m.update(live, changed, manager) {
		return changed
	}
	return m.upstream.UpdateNoErrors(live, changed, manager)
}

// Apply merges the configuration of a manager into an object, as upstream's manager does, whose the errors are.
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

// unvalidated has upstream's manager take objects as valid whose Go type can hold nothing else.
type unvalidated struct {
	managedfields.TypeConverter
	*Manager // nil if objects have to be validated
}

// ObjectToTyped implements managedfields.TypeConverter.
func (u *unvalidated) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
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

// areObjects says whether all fields of managers are written as objects.
func areObjects(fields []metav1.ManagedFieldsEntry) bool {
	for i := range fields {
		if f := fields[i].FieldsV1; f != nil && !bytes.HasPrefix(f.GetRawBytes(), []byte("{")) {
			return false
		}
	}
	return true
}

// Known says whether managed fields are surely valid, since they have been read or written before. What is valid may be
// unknown.
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

// entry is what a manager owns.
type entry struct {
	metav1.ManagedFieldsEntry
	*owned
	read *owned // nil if it is new
}

func (e *entry) is(manager string, operation metav1.ManagedFieldsOperationType, subresource string) bool {
	return e.Manager == manager && e.Operation == operation && e.Subresource == subresource
}

// update says whether it has set the managed fields. If not, it has changed nothing that upstream does not.
func (m *Manager) update(live, changed runtime.Object, manager string) bool {
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
		is.SetManagedFields(nil) // it has none, and shall have none
		return true
	}
	shape := m.shape(live, changed, entries)
	if o := m.created.get(shape); shape != nil && o != nil {
		entries, ok := m.gain(entries, manager, o)
		if !ok {
			return false
		}
		fields, err := m.written(entries)
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

	if !c.changed.Empty() || !c.removed.Empty() {
		kept := entries[:0]
		for i := range entries {
			e := &entries[i]
			e.lose(c)
			if !e.set.Empty() {
				kept = append(kept, *e)
			}
		}
		entries = kept
	} else {
		entries = slices.DeleteFunc(entries, func(e entry) bool { return e.set.Empty() })
	}
	set := c.changed
	if !set.Empty() {
		set = m.ownable(set)
	}
	if !set.Empty() {
		if entries, ok = m.gain(entries, manager, &owned{set: set}); !ok {
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
	fields, err := m.written(entries)
	if err != nil {
		return false
	}
	is.SetManagedFields(fields)
	if shape != nil && len(entries) == 1 {
		m.created.put(shape, entries[0].owned)
	}
	return true
}

// shape says which fields there are in an object that is created, as far as managers own fields, but not what they are: what
// its manager owns depends on that alone. It is nil if the object is not created, comes with managed fields, or has lists of
// which items are owned.
func (m *Manager) shape(live, changed runtime.Object, entries []entry) []byte {
	// Converting nothing to the version might make something of it.
	if len(entries) > 0 || reflect.TypeOf(live) != reflect.PointerTo(m.tree.goType) || !reflect.ValueOf(live).Elem().IsZero() {
		return nil
	}
	v, err := m.versioned(changed)
	if err != nil {
		return nil
	}
	shape, ok := m.tree.shape(make([]byte, 0, 512), v)
	if !ok {
		return nil
	}
	return shape
}

// written returns what managers own in the form and order that objects have it in.
func (m *Manager) written(entries []entry) ([]metav1.ManagedFieldsEntry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	fields := make([]metav1.ManagedFieldsEntry, len(entries))
	for i := range entries {
		e := &entries[i]
		if e.raw == nil && e.read != nil && e.set.Equals(e.read.set) {
			e.owned = e.read
		}
		if e.raw == nil {
			o, err := write(e.set)
			if err != nil {
				return nil, err
			}
			e.owned = o
			m.sets.put(o.raw, o) // the next request reads it
		}
		fields[i] = e.ManagedFieldsEntry
		fields[i].FieldsV1 = &metav1.FieldsV1{}
		fields[i].FieldsV1.SetRawBytes(bytes.Clone(e.raw)) // decoding into an object writes into these
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

// entries reads what managers own: what the changed object says, or else the live one.
func (m *Manager) entries(sent, stored []metav1.ManagedFieldsEntry) ([]entry, bool) {
	if sent != nil && len(sent) == 0 || len(sent) == 1 && reflect.DeepEqual(sent[0], metav1.ManagedFieldsEntry{}) {
		return nil, true // to be reset
	}
	if len(sent) == 0 {
		sent = stored
	}
	if !areObjects(stored) {
		return nil, false
	}
	version := m.Kind.GroupVersion()
	entries := make([]entry, 0, len(sent)+1)
	for i := range sent {
		e := &sent[i]
		switch {
		case e.Operation != metav1.ManagedFieldsOperationApply && e.Operation != metav1.ManagedFieldsOperationUpdate,
			e.FieldsType != "FieldsV1", !isVersion(e.APIVersion, version), !utf8.ValidString(e.Manager), !utf8.ValidString(e.Subresource):
			return nil, false
		}
		for j := range entries {
			if entries[j].is(e.Manager, e.Operation, e.Subresource) {
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

// isVersion says whether a string is a group version.
func isVersion(s string, gv schema.GroupVersion) bool {
	if gv.Group == "" {
		return s == gv.Version
	}
	g := len(gv.Group)
	return len(s) == g+1+len(gv.Version) && s[:g] == gv.Group && s[g] == '/' && s[g+1:] == gv.Version
}

// compare finds out what an update changes, but for what the endpoint resets.
func (m *Manager) compare(live, changed runtime.Object) (*comparison, error) {
	old, err := m.versioned(live)
	if err != nil {
		return nil, err
	}
	updated, err := m.versioned(changed)
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

func (m *Manager) versioned(obj runtime.Object) (reflect.Value, error) {
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

// lose takes from a manager what another one has set, and what is no longer there.
func (e *entry) lose(c *comparison) {
	set := e.set
	if !c.changed.Empty() {
		if lost := set.Intersection(c.changed); !lost.Empty() {
			set = set.Difference(lost)
		}
	}
	if !c.removed.Empty() {
		set = set.Difference(c.removed)
	}
	if set != e.set {
		e.owned = &owned{set: set}
	}
}

// gain gives the manager of an update what it has set.
func (m *Manager) gain(entries []entry, manager string, gained *owned) ([]entry, bool) {
	if manager == "" {
		manager = "unknown"
	}
	if !utf8.ValidString(manager) {
		return nil, false
	}
	at := slices.IndexFunc(entries, func(e entry) bool {
		return e.is(manager, metav1.ManagedFieldsOperationUpdate, "")
	})
	if at < 0 {
		at = len(entries)
		entries = append(entries, entry{ManagedFieldsEntry: metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: m.Kind.GroupVersion().String(), FieldsType: "FieldsV1",
		}, owned: gained})
	} else {
		entries[at].owned = &owned{set: gained.set.Union(entries[at].set)}
	}
	entries[at].Time = &metav1.Time{Time: time.Now().UTC()}
	return entries, true
}

// ownable is what of a set managers may own.
func (m *Manager) ownable(set *fieldpath.Set) *fieldpath.Set {
	if m.filter != nil {
		set = m.filter.Filter(set)
	}
	return set.Difference(m.never)
}
