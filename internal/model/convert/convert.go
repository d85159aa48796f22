// Package convert converts between bytes and objects and between versions. It contains the server's scheme, its
// codecs, the field labels that selectors may name, and the OpenAPI definitions.
//
// The Go type of one version, the hub, also stands for the group's internal version. So there is no second set of
// types, and no conversion between the hub and storage. The alias must be in the scheme because upstream's patch and
// apply handlers convert to the internal version by name. It must not be in OpenAPI, so definitions are named by a
// second scheme without the alias.
package convert

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/structural"
	"github.com/annexapi/annex/internal/wire/plainjson"
)

// Machinery converts, encodes and decodes the objects of one server. It is read-only once built.
type Machinery struct {
	// Scheme contains all types, the internal aliases, defaults and conversions.
	Scheme *runtime.Scheme
	// Public is Scheme without the internal aliases, for naming.
	Public *runtime.Scheme
	Codecs serializer.CodecFactory
	// ParameterCodec decodes the options in a request's query.
	ParameterCodec runtime.ParameterCodec

	groups map[string]*Machinery
	// structural holds the versions with kubebuilder markers that clients may send.
	structural map[schema.GroupVersionKind]*structural.Version
	// shapes locate the fields with defaults in objects and lists, by Go type.
	shapes map[reflect.Type]*structural.Shape
	// lists are the hub's list types of the kinds whose objects this server stores.
	lists map[reflect.Type]bool
	// plans encode and decode objects as JSON.
	plans *plainjson.Plans
	// items caches the encoded items of lists of all groups.
	items      *Items
	operations operations
}

// Of returns the machinery for serving a group. If kinds of several groups share their objects, a Go type stands for
// a kind in each of them, and upstream often uses the first one. So a group that shares the objects of another has a
// machinery of its own, in which its kinds come first.
func (m *Machinery) Of(group string) *Machinery {
	if own, ok := m.groups[group]; ok {
		return own
	}
	return m
}

// New builds the machinery of a checked definition. The extra functions register the server's own kinds in both
// schemes; aliases is set for the scheme with the internal aliases.
func New(server *define.Server, extra ...func(scheme *runtime.Scheme, aliases bool) error) (*Machinery, error) {
	m, err := newMachinery(server, func(*define.Kind) bool { return false }, extra)
	if err != nil {
		return nil, err
	}
	m.items = &Items{budget: rememberedBytes}
	m.groups = map[string]*Machinery{}
	for _, k := range server.Kinds() {
		if k.AliasOf == nil || m.groups[k.Group] != nil {
			continue
		}
		group, err := newMachinery(server, func(other *define.Kind) bool { return other.Group == k.Group }, extra)
		if err != nil {
			return nil, err
		}
		group.items = m.items
		m.groups[k.Group] = group
	}
	return m, nil
}

// newMachinery registers the kinds for which first is true, which are those of one group, before all other kinds.
func newMachinery(
	server *define.Server,
	first func(*define.Kind) bool,
	extra []func(scheme *runtime.Scheme, aliases bool) error,
) (*Machinery, error) {
	m := &Machinery{Scheme: runtime.NewScheme(), Public: runtime.NewScheme(), structural: map[schema.GroupVersionKind]*structural.Version{},
		shapes: map[reflect.Type]*structural.Shape{}, lists: map[reflect.Type]bool{}, plans: plainjson.New(), operations: operationsOf(server)}
	for _, scheme := range []*runtime.Scheme{m.Scheme, m.Public} {
		unversioned := schema.GroupVersion{Version: "v1"}
		metav1.AddToGroupVersion(scheme, unversioned)
		scheme.AddUnversionedTypes(
			unversioned,
			&metav1.Status{},
			&metav1.APIVersions{},
			&metav1.APIGroupList{},
			&metav1.APIGroup{},
			&metav1.APIResourceList{},
		)
		scheme.AddKnownTypes(autoscalingv1.SchemeGroupVersion, &autoscalingv1.Scale{})
		for _, add := range extra {
			if err := add(scheme, scheme == m.Scheme); err != nil {
				return nil, fmt.Errorf("register built-in kinds: %w", err)
			}
		}
		for _, k := range inOrder(server.Kinds(), first) {
			for _, v := range k.Versions {
				if err := v.Facts().AddToScheme(scheme); err != nil {
					return nil, fmt.Errorf("register %s: %w", v.GroupVersion.WithKind(k.Name), err)
				}
			}
			if first(k) && scheme == m.Scheme {
				m.addInternal(k)
			}
		}
		for _, k := range inOrder(server.Kinds(), first) {
			addSubresources(scheme, k)
		}
	}
	// Like all kinds, a scale is patched and applied through its internal version.
	m.Scheme.AddKnownTypes(schema.GroupVersion{Group: autoscalingv1.GroupName, Version: runtime.APIVersionInternal}, &autoscalingv1.Scale{})
	for i := range server.Groups {
		group := &server.Groups[i]
		for _, k := range group.Kinds {
			if err := m.addKind(k); err != nil {
				return nil, err
			}
		}
		served := group.ServedVersions()
		if len(served) == 0 {
			continue // the group is only read from storage
		}
		if err := m.Scheme.SetVersionPriority(served...); err != nil {
			return nil, fmt.Errorf("group %s: %w", group.Name, err)
		}
	}
	m.Codecs = serializer.NewCodecFactory(m.Scheme)
	m.ParameterCodec = runtime.NewParameterCodec(m.Scheme)
	return m, nil
}

// inOrder sorts kinds: those for which first is true, then those with objects of their own, then the others.
func inOrder(kinds []*define.Kind, first func(*define.Kind) bool) []*define.Kind {
	rank := func(k *define.Kind) int {
		switch {
		case first(k):
			return 0
		case k.AliasOf == nil:
			return 1
		}
		return 2
	}
	return slices.SortedStableFunc(slices.Values(kinds), func(a, b *define.Kind) int { return rank(a) - rank(b) })
}

// addInternal makes the hub stand for the group's internal version.
func (m *Machinery) addInternal(k *define.Kind) {
	internal := schema.GroupVersion{Group: k.Group, Version: runtime.APIVersionInternal}
	m.Scheme.AddKnownTypeWithName(internal.WithKind(k.Name), k.Hub().New())
	m.Scheme.AddKnownTypeWithName(internal.WithKind(k.Name+"List"), k.Hub().NewList())
}

func (m *Machinery) addKind(k *define.Kind) error {
	hub := k.Hub()
	m.addInternal(k)
	if primary := k.Primary(); primary.CustomStorage == nil && primary.Source == nil {
		m.lists[reflect.PointerTo(hub.ListType)] = true
	}
	if err := m.addRequests(k); err != nil {
		return err
	}
	for _, v := range k.Versions {
		if err := m.addFieldLabels(k, v); err != nil {
			return err
		}
		if v.Structural != nil && k.Primary().CustomStorage == nil {
			m.structural[v.GroupVersion.WithKind(k.Name)] = v.Structural
			if shape := v.Structural.Shape(); shape != nil {
				m.shapes[reflect.PointerTo(v.Type)], m.shapes[reflect.PointerTo(v.ListType)] = shape, shape.List()
			}
		}
		if v.SameType {
			continue // the Go type is registered with its original version
		}
		if err := m.addDefaults(k, v); err != nil {
			return err
		}
		if add := v.Facts().AddValidations; add != nil {
			if err := add(m.Scheme); err != nil {
				return fmt.Errorf("validation of %s: %w", v.GroupVersion, err)
			}
		}
		if v == hub {
			continue
		}
		if err := m.addConversions(hub, v); err != nil {
			return fmt.Errorf("conversion between %s and %s: %w", v.Type, hub.Type, err)
		}
	}
	return nil
}

// addDefaults registers the defaults of the markers, followed by the generated and the declared ones. A scheme holds
// one defaulting function per type, so the generated functions are registered in a scheme of their own.
func (m *Machinery) addDefaults(k *define.Kind, v *define.Version) error {
	facts := v.Facts()
	generated := runtime.NewScheme()
	if facts.AddDefaults != nil {
		if err := facts.AddDefaults(generated); err != nil {
			return fmt.Errorf("defaults of %s: %w", v.GroupVersion, err)
		}
	}
	m.Scheme.AddTypeDefaultingFunc(v.New(), func(obj any) {
		switch {
		case v.Structural == nil:
		case k.Primary().CustomStorage != nil:
			// Objects from custom storages are encoded as they are, so their zeros mean absent.
			v.Structural.Fill(obj.(runtime.Object), nil)
		default:
			v.Structural.Default(obj.(runtime.Object))
		}
		generated.Default(obj.(runtime.Object))
		if v.Default != nil {
			v.Default(obj.(runtime.Object))
		}
	})
	return nil
}

// addFieldLabels registers the field labels that selectors of a version may name, for the fast path and for upstream's
// handlers. A conversion gets the label and the value of a requirement, and not its operator.
func (m *Machinery) addFieldLabels(k *define.Kind, v *define.Version) error {
	if k.BuiltIn && len(k.Selectable) == 0 {
		return nil // apimachinery's default labels equal those of a kube-apiserver
	}
	declared := map[string]string{"metadata.name": "metadata.name"}
	if !k.ClusterScoped {
		declared["metadata.namespace"] = "metadata.namespace"
	}
	for _, f := range k.Selectable {
		declared[f.Path] = cmp.Or(f.Is, f.Path)
	}
	gvk := v.GroupVersion.WithKind(k.Name)
	return m.Scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		field, ok := declared[label]
		if !ok {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return field, value, nil
	})
}

func (m *Machinery) addConversions(hub, v *define.Version) error {
	complete := func(runtime.Object) {}
	if hub.Structural != nil {
		complete = hub.Structural.Converted(v.Structural)
	}
	up := withMeta(v.Type, hub.Type, func(in, out runtime.Object) error {
		if err := v.ToHub(in, out); err != nil {
			return unconvertible(hub, err)
		}
		complete(out)
		return nil
	})
	down := withMeta(hub.Type, v.Type, v.FromHub)
	if err := m.Scheme.AddConversionFunc(v.New(), hub.New(), up); err != nil {
		return err
	}
	if err := m.Scheme.AddConversionFunc(hub.New(), v.New(), down); err != nil {
		return err
	}
	if err := m.Scheme.AddConversionFunc(v.NewList(), hub.NewList(), list(up)); err != nil {
		return err
	}
	return m.Scheme.AddConversionFunc(hub.NewList(), v.NewList(), list(down))
}

// withMeta copies ObjectMeta, so that conversion functions need not, and then calls convert.
func withMeta(from, to reflect.Type, convert func(in, out runtime.Object) error) conversion.ConversionFunc {
	source, _ := from.FieldByName("ObjectMeta")
	target, _ := to.FieldByName("ObjectMeta")
	return func(in, out any, _ conversion.Scope) error {
		reflect.ValueOf(out).Elem().FieldByIndex(target.Index).Set(reflect.ValueOf(in).Elem().FieldByIndex(source.Index))
		return convert(in.(runtime.Object), out.(runtime.Object))
	}
}

func list(convert conversion.ConversionFunc) conversion.ConversionFunc {
	return func(in, out any, scope conversion.Scope) error {
		source, target := reflect.ValueOf(in).Elem(), reflect.ValueOf(out).Elem()
		target.FieldByName("ListMeta").Set(source.FieldByName("ListMeta"))
		items := source.FieldByName("Items")
		converted := reflect.MakeSlice(target.FieldByName("Items").Type(), items.Len(), items.Len())
		for i := range items.Len() {
			if err := convert(items.Index(i).Addr().Interface(), converted.Index(i).Addr().Interface(), scope); err != nil {
				return err
			}
		}
		target.FieldByName("Items").Set(converted)
		return nil
	}
}

// StorageCodec encodes objects of a kind in their storage version and decodes them to the hub. Decoded objects have
// no kind and version, like all objects of the internal version, for which the hub stands. Otherwise a list would
// contain them in every item, or only in some, depending on the version that an item was stored in. The media type of
// encoded objects is mediaType, or JSON if it is empty. All media types can be decoded.
func (m *Machinery) StorageCodec(stored schema.GroupVersion, mediaType string) runtime.Codec {
	return newStorageCodec(m.Scheme, m.Codecs, stored, mediaType, m.plans, m.structural, m.shapes)
}
