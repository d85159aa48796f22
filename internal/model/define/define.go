// Package define holds what a user declared: the server, its groups, kinds,
// versions and hooks, with all type parameters gone. The façade fills it in,
// Check finds the mistakes, and every other room reads it.
package define

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/structural"
	"github.com/annexapi/annex/store/driver"
)

// Server is a whole API server.
type Server struct {
	Name string
	// Title and Version are the program's; both may be empty.
	Title, Version string
	Groups         []Group
	// Controllers run beside the requests.
	Controllers []Controller
	// AdmissionPlugins see the writes of all kinds, and connections.
	AdmissionPlugins []AdmissionPlugin
	// Handlers answer paths beside the API.
	Handlers []Handler
	Console  Console
	// Query says where queries are answered.
	Query Query
	// Authorizer is asked before the server decides itself what callers may do; nil is not.
	Authorizer authorizer.Authorizer
	// Metrics are shown with the server's own.
	Metrics []prometheus.Gatherer
	// Plane is what a control plane adds; nil is a server with little more than its own groups.
	Plane *Plane
}

// PlaneOptions are the operator's of a control plane. The zero value changes nothing.
type PlaneOptions struct {
	EventTTL      time.Duration
	RuntimeConfig map[string]bool
	CRDs          []string
}

// Plane is what a control plane adds to a definition.
type Plane struct {
	// Groups returns new values of the groups that are built in.
	Groups func() []Group
	// Controllers keep the promises of the groups. A controller of the user's replaces the one of the same name.
	Controllers []Controller
	// AdmissionPlugins are the names of the plugins that run unless they are disabled.
	AdmissionPlugins []string
	// Mistake is the first mistake in the options of the control plane; the other fields are zero then.
	Mistake error
}

// Controller is a client that works for the server. The environment is the façade's handle on
// it; define does not look inside.
type Controller struct {
	Name string
	// Account is the service account in kube-system that the controller works as; empty is all rights. Only
	// those of a control plane have one.
	Account string
	Run     func(ctx context.Context, env any) error
}

// AdmissionPlugin is an admission plugin for all kinds. The environment is the façade's
// handle on the server; define does not look inside.
type AdmissionPlugin struct {
	Name     string
	Disabled bool
	New      func(env any, configuration io.Reader) (admission.Interface, error)
}

// Query says where queries are answered: at /query if it is the zero value.
type Query struct {
	Prefix   string
	Disabled bool
}

// Handler answers paths beside the API.
type Handler struct {
	// Path ends in a slash if all paths that begin so are meant.
	Path string
	New  func(env any) (http.Handler, error)
	// Resource is what a request is authorized as; nil, or what returns nil, is its path.
	Resource func(r *http.Request) *authorizationv1.ResourceAttributes
	// LongRunning requests have no deadline; nil is none.
	LongRunning func(r *http.Request) bool
	// OpenAPI is the document of the handler's paths; nil is none.
	OpenAPI func() *spec3.OpenAPI
}

// Answers says whether the handler is for a path.
func (h *Handler) Answers(path string) bool {
	return path == h.Path || strings.HasSuffix(h.Path, "/") && strings.HasPrefix(path, h.Path)
}

// Document is the name of the handler's OpenAPI document, behind /openapi/v3/.
func (h *Handler) Document() string { return strings.Trim(h.Path, "/") }

// Group is an API group.
type Group struct {
	Name  string
	Kinds []*Kind
}

// With returns the server with the kinds of built-in groups besides its own. Those that it has
// as built-in kinds already stay as they are; one of its own that has the name of
// another takes its place if that is replaceable, and is a mistake if not. It shares everything else with s.
func (s *Server) With(groups ...Group) (*Server, error) {
	extended := *s
	extended.Groups = slices.Clone(s.Groups)
	var added []Group
	var mistakes []error
	for _, g := range groups {
		i := slices.IndexFunc(extended.Groups, func(own Group) bool { return own.Name == g.Name })
		if i < 0 {
			i = len(extended.Groups)
			extended.Groups = append(extended.Groups, Group{Name: g.Name})
		}
		own := &extended.Groups[i]
		own.Kinds = slices.Clone(own.Kinds)
		missing := Group{Name: g.Name}
		for _, k := range g.Kinds {
			k.Group, k.Name, k.BuiltIn = g.Name, k.Versions[0].Type.Name(), true
			switch other := own.named(k); {
			case other == nil:
				own.Kinds, missing.Kinds = append(own.Kinds, k), append(missing.Kinds, k)
			case !other.BuiltIn && !k.Replaceable:
				mistakes = append(
					mistakes,
					fmt.Errorf(
						"kind %s (%s): the server has %s by itself: leave yours out, or give it another group",
						other.Name,
						other.GroupResource(),
						k.GroupResource(),
					),
				)
			}
		}
		if len(missing.Kinds) > 0 {
			added = append(added, missing)
		}
	}
	switch {
	case len(mistakes) > 0:
		return nil, errors.Join(mistakes...)
	case len(added) == 0:
		return s, nil
	}
	if err := Check(&Server{Name: s.Name, Groups: added}); err != nil {
		return nil, fmt.Errorf("built-in kinds: %w", err)
	}
	return &extended, nil
}

// named returns the group's kind that has the kind's name, or its resource's; nil if there is none.
func (g *Group) named(k *Kind) *Kind {
	for _, other := range g.Kinds {
		if other.Resource == k.Resource || other.Name == k.Name {
			return other
		}
	}
	return nil
}

// WithControllers returns the server with controllers beside its own, which take the place of
// those of the same names.
func (s *Server) WithControllers(controllers ...Controller) *Server {
	extended := *s
	extended.Controllers = slices.Clone(s.Controllers)
	for _, c := range controllers {
		if !slices.ContainsFunc(s.Controllers, func(own Controller) bool { return own.Name == c.Name }) {
			extended.Controllers = append(extended.Controllers, c)
		}
	}
	return &extended
}

// Kind is one kind in all its versions. The objects that hooks see are pointers
// to the hub's Go type, unless a hook says otherwise.
type Kind struct {
	// Group and Name are the API group and the kind, such as Pizza.
	Group string
	Name  string
	// Resource and Singular are the lower-case plural and singular names.
	Resource   string
	Singular   string
	ShortNames []string
	Categories []string
	// BuiltIn kinds are not the user's: the server serves them as a kube-apiserver does.
	BuiltIn bool
	// Replaceable built-in kinds give way to a user's of the same name.
	Replaceable bool
	// ClusterScoped kinds live outside namespaces.
	ClusterScoped bool

	// Versions holds the hub first, then the others as declared.
	Versions []*Version
	// StoredAs names the version that objects are stored in.
	StoredAs string
	// Storage is the storage that they are kept in; nil is the server's.
	Storage driver.Driver
	// StoredMediaType is what they are encoded in there; empty is what suits the
	// storage.
	StoredMediaType string
	// StoredUnder is the resource whose place they take there; empty is the kind's.
	StoredUnder schema.GroupResource

	// Aliases are the same objects in other groups: kinds with a group, a resource and
	// versions of their own, and all else from this one.
	Aliases []*Kind
	// AliasOf is the primary kind, whose Aliases this one is among; nil if this one is
	// primary.
	AliasOf *Kind

	// Status says that the kind serves /status; WithoutStatus, that it must not.
	Status        bool
	WithoutStatus bool
	// ValidateName says what is wrong with the name of a new object, or the beginning of a
	// generated one; nil wants a DNS subdomain.
	ValidateName func(name string, prefix bool) []string
	// WithoutGeneration kinds leave metadata.generation alone.
	WithoutGeneration bool
	// TTL is how long an object is kept after it was last written; 0 is for ever.
	TTL time.Duration
	// Unconditional kinds accept updates without a resource version in every server, others if
	// the options say so.
	Unconditional bool
	// ReturnsDeleted kinds answer a deletion with the object, as do all with a grace period.
	ReturnsDeleted bool
	// CreateOnUpdate kinds create the object that an update does not find.
	CreateOnUpdate bool
	Scale          *Scale
	Grace          *Grace
	// CustomSubresources are those beside /status and /scale, as declared.
	CustomSubresources []*Subresource

	// Grants say which roles may do what with the kind's objects, besides what DefaultRoles
	// does.
	DefaultRoles bool
	Grants       []Grant

	Columns []Column
	// WithoutAge adds no column of the age to them, WithoutName none of the name.
	WithoutAge, WithoutName bool
	Selectable              []SelectableField
	// QueryFields are what queries sort and filter by, beside selectable fields and metadata.
	QueryFields []ordered.Field
	// IndexFields are paths of selectable fields, IndexLabels keys of labels.
	IndexFields []string
	IndexLabels []string

	PrepareForCreate func(ctx context.Context, obj runtime.Object)
	PrepareForUpdate func(ctx context.Context, obj, old runtime.Object)
	PrepareForStatus func(ctx context.Context, obj, old runtime.Object)
	// Validate sees what is created and what is updated.
	Validate       func(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateCreate func(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	ValidateStatus func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	Warn           func(ctx context.Context, obj runtime.Object) []string
	// WarnsOfChanges kinds warn of an update only if it raises the generation.
	WarnsOfChanges bool

	// ValidationOptions are those that tags of declarative validation may ask for.
	ValidationOptions map[string]bool

	// Admissions run in order on every write; each constructor is called once
	// for a server.
	Admissions []AdmissionConstructor
	// ConnectAdmissions run in order on every connection, and are not Mutating.
	ConnectAdmissions []AdmissionConstructor
	// CreateAdmissions decide, when an object is created, whether it may be there beside
	// those that exist.
	CreateAdmissions []func(env any) (BesideAdmission, error)
	// UpdateAdmissions decide, when an object is updated, whether it may be so beside the
	// others.
	UpdateAdmissions []func(env any) (BesideAdmission, error)

	// Source is where the objects of a virtual kind are; nil for all others.
	Source *Source
	// CustomStorage makes the storage of a kind that is served by the user's own; nil for all
	// others.
	CustomStorage StorageConstructor
	// Operations carry out long actions, of the kind that they are objects of; nil for all
	// others.
	Operations *OperationsKind
}

// Version is a kind in one version.
type Version struct {
	// Facts returns what was generated about the version's package.
	Facts func() api.Facts
	// Type and ListType are the Go struct types; ListType is nil for all but the
	// hub until Check has looked it up.
	Type     reflect.Type
	ListType reflect.Type
	// ToHub and FromHub convert between this version and the hub; nil for the
	// hub itself. They need not treat TypeMeta and ObjectMeta.
	ToHub   func(in, hub runtime.Object) error
	FromHub func(hub, out runtime.Object) error
	// Default and Validate see objects of this version.
	Default  func(obj runtime.Object)
	Validate func(ctx context.Context, obj runtime.Object) field.ErrorList
	// Generated says that the conversions are those of Facts; Check fills them in.
	Generated bool
	// SameType says that the Go type is that of a version of the kind that this one
	// shares its objects with; Check fills in the rest from there.
	SameType bool
	// Unserved versions are only read from storage.
	Unserved bool
	// Deprecated is the warning sent with every use of the version.
	Deprecated string

	// Structural is what kubebuilder markers say of the version; nil if nothing. Check
	// fills it in.
	Structural *structural.Version

	// GroupVersion is filled in by Check, but for the version of Same.
	GroupVersion schema.GroupVersion
}

// New returns an empty object of the version.
func (v *Version) New() runtime.Object {
	return reflect.New(v.Type).Interface().(runtime.Object)
}

// NewList returns an empty list of the version's objects.
func (v *Version) NewList() runtime.Object {
	return reflect.New(v.ListType).Interface().(runtime.Object)
}

// ProtobufMessage is what upstream's protobuf serializer needs of an object.
type ProtobufMessage interface {
	runtime.Object
	runtime.ProtobufMarshaller
	Reset()
	Unmarshal(data []byte) error
}

// IsProtobuf says whether a pointer to a Go type has the methods by which it is
// encoded as protobuf.
func IsProtobuf(t reflect.Type) bool {
	return t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[ProtobufMessage]())
}

// GroupVersionKind names the version's kind.
func (v *Version) GroupVersionKind() schema.GroupVersionKind {
	return v.GroupVersion.WithKind(v.Type.Name())
}

// SpeaksProtobuf says whether clients may have the version as protobuf: its objects,
// and lists of them.
func (v *Version) SpeaksProtobuf() bool { return IsProtobuf(v.Type) && IsProtobuf(v.ListType) }

// Scale names the fields that /scale works on, as paths such as .spec.replicas.
type Scale struct {
	SpecReplicas   []string
	StatusReplicas []string
	// Selector is empty if the kind has none.
	Selector []string
}

// Grace describes graceful deletion.
type Grace struct {
	Period time.Duration
	// Of returns the period of an object, instead of Period; nil is Period.
	Of func(obj runtime.Object) time.Duration
	// DeleteAfterPeriod makes the server itself remove the object at the end.
	DeleteAfterPeriod bool
}

// Column is one column of the kind's table.
type Column struct {
	Name        string
	Type        string
	Format      string
	Description string
	// Wide columns are shown with -o wide only.
	Wide  bool
	Value func(obj runtime.Object) any
}

// SelectableField is a field that field selectors may name.
type SelectableField struct {
	// Path is the selector's left side, such as spec.referenceType.
	Path string
	// Is is the path that the primary kind has for it, if that is another one.
	Is    string
	Value func(obj runtime.Object) string
}

// AdmissionConstructor makes an admission hook for one server. The environment is the
// façade's handle on that server; define does not look inside.
type AdmissionConstructor func(env any) (Admission, error)

// Admission is an admission hook. Attributes carry hub objects.
type Admission struct {
	// Mutating hooks may change the object and run before validation.
	Mutating bool
	// On are the operations that it is asked about; all if there is none.
	On     []admission.Operation
	Review func(ctx context.Context, a admission.Attributes) error
}

// BesideAdmission decides about a create or an update, given all other objects of the kind.
type BesideAdmission func(ctx context.Context, a admission.Attributes, existing []runtime.Object) error

// Facts are the generated facts about the packages of the kind's versions and of its subresources' messages, those of all
// groups together.
func (k *Kind) Facts() []api.Facts {
	var all []api.Facts
	for _, v := range k.AllVersions() {
		if v.Facts != nil {
			all = append(all, v.Facts())
		}
	}
	for _, s := range k.CustomSubresources {
		if s != nil && s.Facts != nil {
			all = append(all, s.Facts())
		}
	}
	return all
}

// Primary is the kind that decides about the objects: itself, or the one that it
// shares them with.
func (k *Kind) Primary() *Kind {
	if k.AliasOf != nil {
		return k.AliasOf
	}
	return k
}

// Hub is the version that all others convert to.
func (k *Kind) Hub() *Version { return k.Primary().Versions[0] }

// AllVersions are the versions that the kind's objects have in all their groups, the
// hub first.
func (k *Kind) AllVersions() []*Version {
	all := slices.Clone(k.Primary().Versions)
	for _, also := range k.Primary().Aliases {
		all = append(all, also.Versions...)
	}
	return all
}

// Stored is the version that objects are stored in.
func (k *Kind) Stored() *Version {
	if v := k.version(k.Primary().StoredAs); v != nil {
		return v
	}
	return k.Hub()
}

// version finds a version by its name, with the group unless it is that of the primary; nil
// if there is none.
func (k *Kind) version(name string) *Version {
	for _, v := range k.AllVersions() {
		if v.GroupVersion.String() == name || v.GroupVersion.Group == k.Primary().Group && v.GroupVersion.Version == name {
			return v
		}
	}
	return nil
}

// GroupResource names the kind's resource.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// GroupKind names the kind.
func (k *Kind) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: k.Group, Kind: k.Name}
}

// Add puts a kind into its group, a new one if need be.
func (s *Server) Add(k *Kind) {
	i := slices.IndexFunc(s.Groups, func(g Group) bool { return g.Name == k.Group })
	if i < 0 {
		i = len(s.Groups)
		s.Groups = append(s.Groups, Group{Name: k.Group})
	}
	s.Groups[i].Kinds = append(s.Groups[i].Kinds, k)
}

// Owner returns the resource that a resource shares the objects of, which is itself
// for most, and for those that are no kind's.
func (s *Server) Owner(resource schema.GroupResource) schema.GroupResource {
	for _, k := range s.Kinds() {
		if k.GroupResource() == resource {
			return k.Primary().GroupResource()
		}
	}
	return resource
}

// Kinds returns all kinds of the server in the order declared, those that share
// their objects with another among them.
func (s *Server) Kinds() []*Kind {
	var kinds []*Kind
	for _, g := range s.Groups {
		kinds = append(kinds, g.Kinds...)
	}
	return kinds
}

// Verbs returns the verbs that the kind's main endpoint serves: every stored kind
// all of them, a virtual one what its source can do. What a storage of the user's
// own serves cannot be told from the definition: that is nil.
func (k *Kind) Verbs() []string {
	if k.Primary().CustomStorage != nil {
		return nil
	}
	source := k.Primary().Source
	verbs := []string{"get", "list"}
	for _, v := range []struct {
		serves bool
		verbs  []string
	}{
		{source == nil || source.Create != nil, []string{"create"}},
		{k.Updatable(), []string{"patch", "update"}},
		{source == nil || source.Delete != nil, []string{"delete", "deletecollection"}},
		{source == nil || source.Watched(), []string{"watch"}},
	} {
		if v.serves {
			verbs = append(verbs, v.verbs...)
		}
	}
	slices.Sort(verbs)
	return verbs
}

// Updatable says whether the kind's objects can be changed.
func (k *Kind) Updatable() bool {
	source := k.Primary().Source
	return source == nil || source.Update != nil
}

// Subresources returns the subresources that the kind serves. Those of a storage of
// the user's own cannot be told from the definition.
func (k *Kind) Subresources() []string {
	var names []string
	if k.Primary().CustomStorage != nil {
		return nil
	}
	if k.Status && k.Updatable() {
		names = append(names, "status")
	}
	if k.Scale != nil && k.Updatable() {
		names = append(names, "scale")
	}
	for _, s := range k.CustomSubresources {
		names = append(names, s.Name)
	}
	return names
}

// Hooks names the hooks that the kind has.
func (k *Kind) Hooks() []string {
	var names []string
	for _, hook := range []struct {
		name string
		set  bool
	}{
		{"default", k.Hub().Default != nil},
		{"prepare for create", k.PrepareForCreate != nil},
		{"prepare for update", k.PrepareForUpdate != nil},
		{"prepare for status", k.PrepareForStatus != nil},
		{"validate", k.Validate != nil},
		{"validate create", k.ValidateCreate != nil},
		{"validate update", k.ValidateUpdate != nil},
		{"validate status", k.ValidateStatus != nil},
		{"warn", k.Warn != nil},
		{"admission", len(k.Admissions) > 0},
		{"admission of connections", len(k.ConnectAdmissions) > 0},
		{"admission of creates", len(k.CreateAdmissions) > 0},
		{"admission of updates", len(k.UpdateAdmissions) > 0},
	} {
		if hook.set {
			names = append(names, hook.name)
		}
	}
	return names
}
