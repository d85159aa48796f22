package managed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// tree is a Go type together with its schema. Comparing two objects by a tree has the same result as the reflection of
// structured-merge-diff, but reads only their differences in depth.
type tree struct {
	kind   treeKind
	goType reflect.Type // without pointers
	schema *smd.Schema
	ref    smd.TypeRef

	fields []treeField              // of a struct
	elem   *tree                    // of a map or list
	plain  bool                     // set for a map of strings to strings
	keys   []*value.FieldCacheEntry // keys of the items of a list; empty for a set
}

type treeKind uint8

const (
	scalar     treeKind = iota // a leaf whose Go type can hold only values that the schema allows
	atomic                     // a list, map or struct that is compared and owned as a whole
	record                     // a struct
	dictionary                 // a map
	list                       // a list with owned items; structured-merge-diff compares lists that differ
	managers                   // managed fields, which structured-merge-diff must validate
)

type treeField struct {
	name  fieldpath.PathElement
	entry *value.FieldCacheEntry
	tree  *tree
	// index is the index of the field; nil if a pointer is on the way.
	index []int
	// zero is the value that an empty object is written with; invalid if the field is omitted there.
	zero reflect.Value
}

// errUnknown reports that structured-merge-diff must do the work.
var errUnknown = errors.New("the Go type and the schema are not known to agree")

// treeBuilder builds trees.
type treeBuilder struct {
	schema *smd.Schema
	trees  map[treeKey]*tree
}

type treeKey struct {
	goType reflect.Type
	name   string
	atomic bool
}

// build returns the tree of a Go type and a schema. It returns an error if the type can hold values that the schema
// does not allow: then structured-merge-diff rejects some objects, which a tree would not detect.
func (p *treeBuilder) build(t reflect.Type, ref smd.TypeRef) (*tree, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	atom, ok := p.schema.Resolve(ref)
	if !ok {
		return nil, errUnknown
	}
	forms := 0
	for _, is := range []bool{atom.Map != nil, atom.List != nil, atom.Scalar != nil} {
		if is {
			forms++
		}
	}
	if isUntyped(atom) {
		return &tree{kind: atomic, goType: t, schema: p.schema, ref: ref}, nil
	}
	if forms != 1 {
		return nil, errUnknown
	}
	key := treeKey{goType: t, atomic: ref.ElementRelationship != nil && *ref.ElementRelationship == smd.Atomic}
	if ref.NamedType != nil {
		key.name = *ref.NamedType
		if made, ok := p.trees[key]; ok {
			return made, nil
		}
	}
	n := &tree{goType: t, schema: p.schema, ref: ref}
	if key.name != "" {
		p.trees[key] = n
	}
	converted := value.TypeReflectEntryOf(t).CanConvertToUnstructured()
	switch {
	case atom.Scalar != nil:
		n.kind = scalar
		if converted {
			if !writesScalar(t, *atom.Scalar) {
				return nil, errUnknown
			}
			return n, nil
		}
		return n, holdsScalar(t, *atom.Scalar)
	case converted:
		return nil, errUnknown
	case atom.List != nil:
		return n, p.buildList(n, atom.List)
	}
	return n, p.buildMap(n, atom.Map)
}

// isUntyped reports whether a schema allows every value and every value is owned as a whole.
func isUntyped(a smd.Atom) bool {
	const name = "__untyped_atomic_"
	inside := func(ref smd.TypeRef) bool { return ref.NamedType != nil && *ref.NamedType == name }
	return a.Scalar != nil && *a.Scalar == smd.Untyped &&
		a.List != nil && a.List.ElementRelationship == smd.Atomic && inside(a.List.ElementType) &&
		a.Map != nil && a.Map.ElementRelationship == smd.Atomic && len(a.Map.Fields) == 0 && inside(a.Map.ElementType)
}

// writesScalar reports whether a type with its own JSON encoding always writes a scalar of a kind.
func writesScalar(t reflect.Type, s smd.Scalar) bool {
	switch t.PkgPath() + "." + t.Name() {
	case "k8s.io/apimachinery/pkg/apis/meta/v1.Time",
		"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime",
		"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":
		return s == smd.String || s == smd.Untyped
	case "k8s.io/apimachinery/pkg/api/resource.Quantity", "k8s.io/apimachinery/pkg/util/intstr.IntOrString":
		return s == smd.Untyped || s == smd.String && t.Name() == "Quantity"
	}
	return false
}

func holdsScalar(t reflect.Type, s smd.Scalar) error {
	fits := false
	switch t.Kind() {
	case reflect.Slice:
		fits = t.Elem().Kind() == reflect.Uint8 && (s == smd.String || s == smd.Untyped)
	case reflect.String:
		fits = s == smd.String || s == smd.Untyped
	case reflect.Bool:
		fits = s == smd.Boolean || s == smd.Untyped
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32, reflect.Float64:
		fits = s == smd.Numeric || s == smd.Untyped
	}
	if !fits {
		return errUnknown
	}
	return nil
}

func (p *treeBuilder) buildList(n *tree, l *smd.List) error {
	if n.goType.Kind() != reflect.Slice {
		return errUnknown
	}
	if bytes := n.goType.Elem().Kind() == reflect.Uint8; bytes {
		return errUnknown // written as a string
	}
	if n.goType.Elem() == reflect.TypeFor[metav1.ManagedFieldsEntry]() {
		n.kind = managers
		return nil
	}
	// A value that is owned as a whole must be valid as well.
	item, err := p.build(n.goType.Elem(), l.ElementType)
	if err != nil {
		return err
	}
	n.elem = item
	if l.ElementRelationship == smd.Atomic {
		n.kind = atomic
		return nil
	}
	n.kind = list
	if n.goType.Elem().Kind() == reflect.Pointer {
		return errUnknown // a null item, which is an error, is possible
	}
	if len(l.Keys) == 0 {
		if item.kind != scalar {
			return errUnknown
		}
		return nil
	}
	if item.kind != record && item.kind != atomic || item.goType.Kind() != reflect.Struct {
		return errUnknown
	}
	// An item without any of the keys is an error. So one key must always be written, or have a default.
	atom, _ := p.schema.Resolve(l.ElementType)
	entries := value.TypeReflectEntryOf(item.goType).Fields()
	for _, k := range l.Keys {
		if entry, ok := entries[k]; ok {
			n.keys = append(n.keys, entry)
		}
	}
	for _, k := range l.Keys {
		entry, ok := entries[k]
		if !ok {
			continue
		}
		zero := entry.GetFrom(reflect.Zero(item.goType))
		if zero.Kind() != reflect.Pointer && !entry.CanOmit(zero) {
			return nil
		}
		if field, ok := atom.Map.FindField(k); ok && field.Default != nil {
			return nil
		}
	}
	return errUnknown
}

func (p *treeBuilder) buildMap(n *tree, m *smd.Map) error {
	atomically := m.ElementRelationship == smd.Atomic
	switch n.goType.Kind() {
	case reflect.Struct:
		n.kind = record
		for _, entry := range value.TypeReflectEntryOf(n.goType).OrderedFields() {
			field, ok := m.FindField(entry.JsonName)
			if !ok {
				return errUnknown
			}
			zero := entry.GetFrom(reflect.Zero(n.goType))
			if !zero.CanInterface() {
				return errUnknown
			}
			child, err := p.build(zero.Type(), field.Type)
			if err != nil {
				return fmt.Errorf("%s.%w", entry.JsonName, err)
			}
			written := zero
			if entry.CanOmit(zero) {
				written = reflect.Value{}
			}
			n.fields = append(
				n.fields,
				treeField{
					zero:  written,
					name:  fieldpath.FieldNameElement(entry.JsonName),
					entry: entry,
					tree:  child,
					index: indexOf(n.goType, entry.JsonName, zero.Type()),
				},
			)
		}
	case reflect.Map:
		n.kind = dictionary
		if n.goType.Key().Kind() != reflect.String || len(m.Fields) > 0 || value.TypeReflectEntryOf(n.goType.Key()).CanConvertToUnstructured() {
			return errUnknown
		}
		child, err := p.build(n.goType.Elem(), m.ElementType)
		if err != nil {
			return err
		}
		n.elem = child
		n.plain = n.goType == reflect.TypeFor[map[string]string]()
	default:
		return errUnknown
	}
	if atomically {
		n.kind = atomic
	}
	return nil
}

// indexOf returns the index of the field with a JSON name and type; nil if it is ambiguous or behind a pointer.
func indexOf(t reflect.Type, name string, of reflect.Type) []int {
	var found []int
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := cutTag(f.Tag.Get("json"))
		if tag != name || f.Type != of {
			continue
		}
		if found != nil {
			return nil
		}
		at := t
		for _, i := range f.Index {
			if at.Kind() == reflect.Pointer {
				return nil
			}
			at = at.Field(i).Type
		}
		found = f.Index
	}
	return found
}

func cutTag(tag string) (name, options string, found bool) {
	for i := range len(tag) {
		if tag[i] == ',' {
			return tag[:i], tag[i+1:], true
		}
	}
	return tag, "", false
}

// metadata returns the number of structs in the tree with managed fields. It is one, unless the kind contains templates
// of other objects.
func (n *tree) metadata() int {
	count, seen := 0, map[*tree]bool{}
	var walk func(n *tree)
	walk = func(n *tree) {
		if n == nil {
			return
		}
		if n.goType == reflect.TypeFor[metav1.ObjectMeta]() {
			count++
		}
		if seen[n] {
			return
		}
		seen[n] = true
		walk(n.elem)
		for i := range n.fields {
			walk(n.fields[i].tree)
		}
	}
	walk(n)
	return count
}

// comparison collects the differences of two objects. structured-merge-diff distinguishes modified from added fields;
// both are only used together.
type comparison struct {
	changed, removed *fieldpath.Set
	path             fieldpath.Path
}

func newComparison() *comparison {
	return &comparison{changed: &fieldpath.Set{}, removed: &fieldpath.Set{}, path: make(fieldpath.Path, 0, 16)}
}

// objects compares two structs of the tree's type.
func (c *comparison) objects(n *tree, old, changed reflect.Value) error {
	return c.compareValues(n, old, changed)
}

// shape appends an encoding of the fields that a value has. It returns false if the owned fields depend on more than
// that.
func (n *tree) shape(to []byte, v reflect.Value) ([]byte, bool) {
	v, null := dereference(v)
	if null {
		return append(to, 'n'), true
	}
	ok := true
	switch n.kind {
	case scalar, atomic:
		return append(to, 'v'), true
	case record:
		to = append(to, '{')
		for i := range n.fields {
			f := &n.fields[i]
			var field reflect.Value
			if f.index != nil {
				field = v.FieldByIndex(f.index)
			} else {
				field = f.entry.GetFrom(v)
			}
			if f.entry.CanOmit(field) {
				continue
			}
			to = binary.AppendUvarint(to, uint64(i))
			if f.isZero(field) {
				to = append(to, '0') // no field that an empty object lacks
			}
			if to, ok = f.tree.shape(to, field); !ok {
				return to, false
			}
		}
		return append(binary.AppendUvarint(to, uint64(len(n.fields))), '}'), true
	case dictionary:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		to = binary.AppendUvarint(append(to, '{'), uint64(len(keys)))
		for _, key := range keys {
			to = append(binary.AppendUvarint(to, uint64(key.Len())), key.String()...)
			if n.plain {
				continue
			}
			if to, ok = n.elem.shape(to, v.MapIndex(key)); !ok {
				return to, false
			}
		}
		return to, true
	case list:
		return n.items(to, v)
	}
	return to, false
}

// isZero reports whether a field has the value that it is written with in an empty object.
func (f *treeField) isZero(v reflect.Value) bool {
	if !f.zero.IsValid() || f.tree.kind != scalar && f.tree.kind != atomic {
		return false
	}
	l, lNull := dereference(f.zero)
	r, rNull := dereference(v)
	return lNull == rNull && (lNull || f.tree.kind == scalar && sameScalar(f.tree, l, r) || f.tree.kind == atomic && equalEncoded(l, r))
}

// fewItems is the largest number of items of a list that has a shape.
const fewItems = 32

// items appends the shapes and the keys of a list's items.
func (n *tree) items(to []byte, v reflect.Value) ([]byte, bool) {
	count := v.Len()
	if count > fewItems {
		return to, false
	}
	to = binary.AppendUvarint(append(to, '['), uint64(count))
	var names [fewItems]string
	for i := range count {
		item, null := dereference(v.Index(i))
		if null {
			return to, false
		}
		ok := true
		if to, ok = n.elem.shape(to, item); !ok {
			return to, false
		}
		from := len(to)
		if len(n.keys) == 0 {
			to, ok = appendScalar(to, item)
		}
		for _, entry := range n.keys {
			if to, ok = appendScalar(to, entry.GetFrom(item)); !ok {
				break
			}
		}
		if names[i] = string(to[from:]); !ok || slices.Contains(names[:i], names[i]) {
			return to, false
		}
	}
	return to, true
}

func appendScalar(to []byte, v reflect.Value) ([]byte, bool) {
	v, null := dereference(v)
	if null {
		return append(to, 'n'), true
	}
	if value.TypeReflectEntryOf(v.Type()).CanConvertToUnstructured() {
		return to, false
	}
	switch v.Kind() {
	case reflect.String:
		return append(binary.AppendUvarint(append(to, 's'), uint64(v.Len())), v.String()...), true
	case reflect.Bool:
		return strconv.AppendBool(append(to, 'b'), v.Bool()), true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(append(to, 'i'), v.Int()), true
	}
	return to, false
}

// compareValues compares values that both objects have.
func (c *comparison) compareValues(n *tree, l, r reflect.Value) error {
	l, lNull := dereference(l)
	r, rNull := dereference(r)
	switch n.kind {
	case scalar:
		if lNull != rNull || !lNull && !sameScalar(n, l, r) {
			c.changed.Insert(c.path)
		}
		return nil
	case atomic:
		if lNull != rNull || !lNull && !equalEncoded(l, r) {
			c.changed.Insert(c.path)
		}
		return nil
	case record:
		switch {
		case lNull && rNull:
		case !lNull && !rNull:
			return c.fields(n, l, r)
		case lNull:
			return c.compareNull(n, r, c.changed)
		default:
			return c.compareNull(n, l, c.removed)
		}
	case dictionary:
		if (lNull || l.Len() == 0) && (rNull || r.Len() == 0) {
			if lNull != rNull {
				c.changed.Insert(c.path)
			}
			return nil
		}
		return c.entries(n, l, r, lNull, rNull)
	case list:
		if (lNull || l.Len() == 0) && (rNull || r.Len() == 0) {
			if lNull != rNull {
				c.changed.Insert(c.path)
			}
			return nil
		}
		if !lNull && !rNull && l.Len() == r.Len() && equalEncoded(l, r) {
			return nil
		}
		return c.items(n, l, r)
	}
	return errUnknown
}

// compareNull compares an explicit null with a struct. The null counts as a struct without fields.
func (c *comparison) compareNull(n *tree, v reflect.Value, set *fieldpath.Set) error {
	any, err := c.addNested(n, v, set)
	if err == nil && !any {
		c.changed.Insert(c.path) // null and an empty struct differ
	}
	return err
}

func (c *comparison) fields(n *tree, l, r reflect.Value) error {
	for i := range n.fields {
		f := &n.fields[i]
		var lf, rf reflect.Value
		if f.index != nil {
			lf, rf = l.FieldByIndex(f.index), r.FieldByIndex(f.index)
		} else {
			lf, rf = f.entry.GetFrom(l), f.entry.GetFrom(r)
		}
		if f.tree.kind == scalar && lf.Kind() == reflect.String && lf.String() == rf.String() {
			continue
		}
		lAbsent, rAbsent := f.entry.CanOmit(lf), f.entry.CanOmit(rf)
		if lAbsent && rAbsent {
			continue
		}
		if f.tree.kind == managers && len(c.path) == 1 {
			continue // the object's own managed fields are not compared
		}
		if err := c.child(f.name, f.tree, lf, rf, lAbsent, rAbsent); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) child(name fieldpath.PathElement, n *tree, l, r reflect.Value, lAbsent, rAbsent bool) error {
	c.path = append(c.path, name)
	var err error
	switch {
	case lAbsent:
		err = c.addValue(n, r, c.changed)
	case rAbsent:
		err = c.addValue(n, l, c.removed)
	default:
		err = c.compareValues(n, l, r)
	}
	c.path = c.path[:len(c.path)-1]
	return err
}

func (c *comparison) entries(n *tree, l, r reflect.Value, lNull, rNull bool) error {
	if n.plain && !lNull && !rNull && l.CanInterface() && r.CanInterface() {
		c.strings(l.Interface().(map[string]string), r.Interface().(map[string]string))
		return nil
	}
	if !rNull {
		for it := r.MapRange(); it.Next(); {
			var old reflect.Value
			if !lNull {
				old = l.MapIndex(it.Key())
			}
			if err := c.child(fieldpath.FieldNameElement(it.Key().String()), n.elem, old, it.Value(), !old.IsValid(), false); err != nil {
				return err
			}
		}
	}
	if !lNull {
		for it := l.MapRange(); it.Next(); {
			if !rNull && r.MapIndex(it.Key()).IsValid() {
				continue
			}
			if err := c.child(fieldpath.FieldNameElement(it.Key().String()), n.elem, it.Value(), reflect.Value{}, false, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *comparison) strings(l, r map[string]string) {
	for key, changed := range r {
		if old, ok := l[key]; !ok || old != changed {
			c.changed.Insert(append(c.path, fieldpath.FieldNameElement(key)))
		}
	}
	for key := range l {
		if _, ok := r[key]; !ok {
			c.removed.Insert(append(c.path, fieldpath.FieldNameElement(key)))
		}
	}
}

// addValue adds a value that only one of the objects has to a set, with all values inside.
func (c *comparison) addValue(n *tree, v reflect.Value, set *fieldpath.Set) error {
	if n.kind == managers {
		return errUnknown
	}
	set.Insert(c.path)
	_, err := c.addNested(n, v, set)
	return err
}

// addNested adds the values inside a value to a set. It reports whether there are any.
func (c *comparison) addNested(n *tree, v reflect.Value, set *fieldpath.Set) (bool, error) {
	v, null := dereference(v)
	if null {
		return false, nil
	}
	some := false
	switch n.kind {
	case record:
		for i := range n.fields {
			f := &n.fields[i]
			field := f.entry.GetFrom(v)
			if f.entry.CanOmit(field) {
				continue
			}
			some = true
			c.path = append(c.path, f.name)
			err := c.addValue(f.tree, field, set)
			c.path = c.path[:len(c.path)-1]
			if err != nil {
				return true, err
			}
		}
	case dictionary:
		some = v.Len() > 0
		if n.plain && v.CanInterface() {
			at := set
			if some {
				for _, pe := range c.path {
					at = at.Children.Descend(pe)
				}
			}
			m := v.Interface().(map[string]string)
			keys := make([]string, 0, len(m))
			for key := range m {
				keys = append(keys, key)
			}
			sort.Strings(keys)
			for _, key := range keys {
				at.Members.Insert(fieldpath.FieldNameElement(key))
			}
			break
		}
		for it := v.MapRange(); it.Next(); {
			c.path = append(c.path, fieldpath.FieldNameElement(it.Key().String()))
			err := c.addValue(n.elem, it.Value(), set)
			c.path = c.path[:len(c.path)-1]
			if err != nil {
				return true, err
			}
		}
	case list:
		if some = v.Len() > 0; some {
			compared, err := n.compare(reflect.Value{}, v)
			if err != nil {
				return true, err
			}
			c.graft(set, compared.Added)
		}
	}
	return some, nil
}

// items compares lists by structured-merge-diff.
func (c *comparison) items(n *tree, l, r reflect.Value) error {
	compared, err := n.compare(l, r)
	if err != nil {
		return err
	}
	c.graft(c.changed, compared.Added.Union(compared.Modified))
	c.graft(c.removed, compared.Removed)
	return nil
}

// compare compares two values of the tree's type by structured-merge-diff. An invalid reflect.Value is an absent value.
func (n *tree) compare(l, r reflect.Value) (*typed.Comparison, error) {
	left, err := n.value(l)
	if err != nil {
		return nil, err
	}
	right, err := n.value(r)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 what the type can hold is valid, which is what the tree is made of
	return typed.AsTypedUnvalidated(left, n.schema, n.ref).Compare(typed.AsTypedUnvalidated(right, n.schema, n.ref))
}

func (n *tree) value(v reflect.Value) (value.Value, error) {
	if !v.IsValid() {
		return nil, nil
	}
	if v.Kind() != reflect.Pointer {
		if v.CanAddr() {
			v = v.Addr()
		} else {
			p := reflect.New(v.Type())
			p.Elem().Set(v)
			v = p
		}
	}
	if !v.CanInterface() {
		return nil, errUnknown
	}
	return value.NewValueReflect(v.Interface())
}

// graft adds a set of paths below the current path.
func (c *comparison) graft(to, from *fieldpath.Set) {
	if from.Empty() {
		return
	}
	for _, pe := range c.path {
		to = to.Children.Descend(pe)
	}
	*to = *to.Union(from)
}

// dereference dereferences pointers. It reports whether the value is written as null.
func dereference(v reflect.Value) (reflect.Value, bool) {
	if !v.IsValid() {
		return v, true
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return v, true
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Map, reflect.Slice:
		return v, v.IsNil()
	}
	return v, false
}

// sameScalar reports whether two scalars have the same encoding.
func sameScalar(n *tree, l, r reflect.Value) bool {
	switch l.Kind() {
	case reflect.String:
		return l.String() == r.String()
	case reflect.Bool:
		return l.Bool() == r.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return l.Int() == r.Int()
	}
	return equalEncoded(l, r)
}

// equalEncoded reports whether two values of the same type have the same encoding.
func equalEncoded(l, r reflect.Value) bool {
	if !l.CanInterface() || !r.CanInterface() {
		return false
	}
	if reflect.DeepEqual(l.Interface(), r.Interface()) {
		return true
	}
	left, err := value.NewValueReflect(addressable(l))
	if err != nil {
		return false
	}
	right, err := value.NewValueReflect(addressable(r))
	if err != nil {
		return false
	}
	return value.Equals(right, left)
}

func addressable(v reflect.Value) any {
	if v.CanAddr() {
		return v.Addr().Interface()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Interface()
}
