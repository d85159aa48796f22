// Package define contains the user's declarations without type parameters: the server, its groups, kinds, versions
// and hooks. The façade fills it in, Check validates it, and every other package reads it.
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

// Server is the definition of an API server.
type Server struct {
	Name string
	// Title and Version describe the program; both may be empty.
	Title, Version string
	// OwnVersion makes /version show Version instead of the Kubernetes release.
	OwnVersion bool
	Groups     []Group
	// Controllers run beside the requests.
	Controllers []Controller
	// AdmissionPlugins receive the writes of all kinds, and connections.
	AdmissionPlugins []AdmissionPlugin
	// Handlers serve paths beside the API.
	Handlers []Handler
	Console  Console
	// Query configures the path of queries.
	Query Query
	// Authorizer decides before the server's own authorizers; nil means none.
	Authorizer authorizer.Authorizer
	// Metrics are added to the server's own metrics.
	Metrics []prometheus.Gatherer
	// Plane adds the APIs of a cluster; nil means a server with little more than its own groups.
	Plane *Plane
}

// PlaneOptions are the operator's options of a control plane. The zero value changes nothing.
type PlaneOptions struct {
	EventTTL      time.Duration
	RuntimeConfig map[string]bool
	CRDs          []string
	// Workloads turns the extension on or off; nil is the developer's choice.
	Workloads *bool
}

// ErrNoExtension is the mistake of turning on the extension of a control plane that has none.
var ErrNoExtension = errors.New("the program does not link the kinds of workloads: " +
	"its developer adds them as the extension of the control plane")

// NamespaceController is the name of the controller that deletes the content of namespaces, and then the namespaces.
const NamespaceController = "namespace-controller"

// EveryController selects all controllers, also those that are off. No controller has this name.
const EveryController = "all"

// Plane holds the parts that a control plane adds to a definition.
type Plane struct {
	// Groups returns new values of the groups that are built in.
	Groups func() []Group
	// Controllers implement the behaviour of the groups. A controller of the user replaces a controller of the same name.
	Controllers []Controller
	// AdmissionPlugins are the names of the plugins that run unless they are disabled. OffAdmissionPlugins run only if
	// they are enabled.
	AdmissionPlugins, OffAdmissionPlugins []string
	// Roles returns further roles and bindings of rbac.authorization.k8s.io/v1 that exist from the start; nil means none. It is
	// called at the start of a server.
	Roles func() []runtime.Object
	// Mistake is the first mistake in the options of the control plane; the other fields are zero then.
	Mistake error
}

// Controller is a client that works for the server. The environment is the façade's handle on the server; define does
// not use it.
type Controller struct {
	Name string
	// Account is the service account in kube-system under which the controller works; empty gives it all rights. Only
	// the controllers of a control plane have one.
	Account string
	// Off controllers run only if they are selected by name, or by EveryController.
	Off bool
	// Run is nil for a controller whose work the server itself does, if the controller is selected.
	Run func(ctx context.Context, env any) error
}

// AdmissionPlugin is an admission plugin for all kinds. The environment is the façade's handle on the server; define
// does not use it.
type AdmissionPlugin struct {
	Name     string
	Disabled bool
	New      func(env any, configuration io.Reader) (admission.Interface, error)
}

// Query configures the path of queries. The zero value means /query.
type Query struct {
	Prefix   string
	Disabled bool
}

// Handler serves paths beside the API.
type Handler struct {
	// Path is an exact path, or a prefix of paths if it ends in a slash.
	Path string
	New  func(env any) (http.Handler, error)
	// Resource returns the resource attributes for the authorization of a request. If Resource or its result is nil,
	// the path is authorized.
	Resource func(r *http.Request) *authorizationv1.ResourceAttributes
	// LongRunning reports whether a request has no deadline; nil means that all requests have one.
	LongRunning func(r *http.Request) bool
	// OpenAPI returns the document of the handler's paths; nil means no document.
	OpenAPI func() *spec3.OpenAPI
}

// Answers reports whether the handler serves a path.
func (h *Handler) Answers(path string) bool {
	return path == h.Path || strings.HasSuffix(h.Path, "/") && strings.HasPrefix(path, h.Path)
}

// Document returns the name of the handler's OpenAPI document below /openapi/v3/.
func (h *Handler) Document() string { return strings.Trim(h.Path, "/") }

// Group is an API group.
type Group struct {
	Name  string
	Kinds []*Kind
}

// With returns a server that additionally has the kinds of built-in groups. Built-in kinds that s already has are
// kept. A kind of the user with the same name replaces a built-in kind that is Replaceable; otherwise it is a
// mistake. The result shares everything else with s.
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
						"kind %s (%s): every server has %s already: remove the kind, or use another group",
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

// named returns the group's kind with the name or the resource of k, or nil.
func (g *Group) named(k *Kind) *Kind {
	for _, other := range g.Kinds {
		if other.Resource == k.Resource || other.Name == k.Name {
			return other
		}
	}
	return nil
}

// WithControllers returns a server with additional controllers. A controller of s with the same name replaces an
// additional one.
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

// Kind is one kind in all its versions. Hooks receive pointers to the hub's Go type, unless documented otherwise.
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
	// Replaceable built-in kinds are replaced by a user's kind of the same name.
	Replaceable bool
	// ClusterScoped kinds live outside namespaces.
	ClusterScoped bool

	// Versions holds the hub first, then the others as declared.
	Versions []*Version
	// StoredAs is the name of the storage version.
	StoredAs string
	// Storage is the storage of the objects; nil means the server's.
	Storage driver.Driver
	// StoredMediaType is the media type of stored objects; empty means the storage's default.
	StoredMediaType string
	// StoredUnder is the resource under which the objects are stored; empty means the kind's own.
	StoredUnder schema.GroupResource

	// Aliases are the same objects in other groups. They are kinds with their own group, resource and versions, and
	// all other properties of this kind.
	Aliases []*Kind
	// AliasOf is the primary kind of an alias; nil for a primary kind.
	AliasOf *Kind

	// Status makes the kind serve /status. WithoutStatus forbids it.
	Status        bool
	WithoutStatus bool
	// StatusMetadata kinds accept changes of the metadata through /status, as a few kinds of Kubernetes do. Other kinds ignore these.
	StatusMetadata bool
	// ValidateName returns the errors of the name of a new object, or of the prefix of a generated name; nil requires
	// a DNS subdomain.
	ValidateName func(name string, prefix bool) []string
	// WithoutGeneration kinds do not maintain metadata.generation.
	WithoutGeneration bool
	// TTL is how long an object is kept after its last write; 0 means forever.
	TTL time.Duration
	// History is how long the revisions of objects are kept for clients; nil keeps the revisions for watches alone.
	History *History
	// Unconditional kinds accept updates without a resource version in every server. Other kinds accept them if the
	// options allow it.
	Unconditional bool
	// ReturnsDeleted kinds answer a delete with the object, as do all kinds with a grace period.
	ReturnsDeleted bool
	// CreateOnUpdate kinds create an object that an update does not find.
	CreateOnUpdate bool
	Scale          *Scale
	Grace          *Grace
	// CustomSubresources are the subresources beside /status and /scale, as declared.
	CustomSubresources []*Subresource

	// Grants give roles access to the kind's objects, in addition to DefaultRoles.
	DefaultRoles bool
	Grants       []Grant

	Columns []Column
	// WithoutAge omits the age column, WithoutName the name column.
	WithoutAge, WithoutName bool
	// RowOrder compares the objects of two rows of a table, which is sorted by it. Nil keeps the order of the list.
	RowOrder   func(a, b runtime.Object) int
	Selectable []SelectableField
	// QueryFields are the fields by which queries sort and filter, in addition to selectable fields and metadata.
	QueryFields []ordered.Field
	// IndexFields are paths of selectable fields, IndexLabels keys of labels.
	IndexFields []string
	IndexLabels []string

	PrepareForCreate func(ctx context.Context, obj runtime.Object)
	PrepareForUpdate func(ctx context.Context, obj, old runtime.Object)
	PrepareForStatus func(ctx context.Context, obj, old runtime.Object)
	// Canonicalize changes validated objects before they are stored.
	Canonicalize func(obj runtime.Object)
	// AfterCreate, AfterUpdate and AfterDelete are called after writes of the API that are no dry runs.
	AfterCreate, AfterUpdate, AfterDelete func(obj runtime.Object)
	// Validate validates objects in creates and in updates.
	Validate       func(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateCreate func(ctx context.Context, obj runtime.Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	ValidateStatus func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	Warn           func(ctx context.Context, obj runtime.Object) []string
	// WarnsOfChanges kinds return warnings for an update only if it increases the generation.
	WarnsOfChanges bool

	// ValidationOptions are the options of declarative validation tags, by name.
	ValidationOptions map[string]bool

	// Admissions run in order on every write. Each constructor is called once per server.
	Admissions []AdmissionConstructor
	// ConnectAdmissions run in order on every connection, and are not Mutating.
	ConnectAdmissions []AdmissionConstructor
	// CreateAdmissions decide about a create, given the existing objects of the kind.
	CreateAdmissions []func(env any) (BesideAdmission, error)
	// UpdateAdmissions decide about an update, given the other objects of the kind.
	UpdateAdmissions []func(env any) (BesideAdmission, error)

	// Source provides the objects of a virtual kind; nil for all other kinds.
	Source *Source
	// CustomStorage creates the storage of a kind that the user implements; nil for all other kinds.
	CustomStorage StorageConstructor
	// Operations carry out long actions, if the kind's objects are operations; nil for all other kinds.
	Operations *OperationsKind
}

// Version is a kind in one version.
type Version struct {
	// Facts returns the generated facts about the version's package.
	Facts func() api.Facts
	// Type and ListType are the Go struct types. Until Check has found the ListType, it is nil for all versions
	// except the hub.
	Type     reflect.Type
	ListType reflect.Type
	// ToHub and FromHub convert between this version and the hub; nil for the hub itself. They need not handle
	// TypeMeta and ObjectMeta.
	ToHub   func(in, hub runtime.Object) error
	FromHub func(hub, out runtime.Object) error
	// Default and Validate receive objects of this version.
	Default  func(obj runtime.Object)
	Validate func(ctx context.Context, obj runtime.Object) field.ErrorList
	// Generated selects the conversions of Facts; Check fills them in.
	Generated bool
	// SameType means that Type is the Go type of a version of the primary kind. Check copies the other fields from
	// there.
	SameType bool
	// Unserved versions are only read from storage.
	Unserved bool
	// Deprecated is the warning sent with every use of the version.
	Deprecated string

	// Structural contains the kubebuilder markers of the version; nil if there are none. Check fills it in.
	Structural *structural.Version

	// GroupVersion is filled in by Check, except for a version with SameType.
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

// ProtobufMessage is the interface that upstream's protobuf serializer requires of an object.
type ProtobufMessage interface {
	runtime.Object
	runtime.ProtobufMarshaller
	Reset()
	Unmarshal(data []byte) error
}

// IsProtobuf reports whether a pointer to a Go type has the methods for protobuf encoding.
func IsProtobuf(t reflect.Type) bool {
	return t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[ProtobufMessage]())
}

// GroupVersionKind returns the kind in this version.
func (v *Version) GroupVersionKind() schema.GroupVersionKind {
	return v.GroupVersion.WithKind(v.Type.Name())
}

// SpeaksProtobuf reports whether clients can get the version as protobuf, both objects and lists.
func (v *Version) SpeaksProtobuf() bool { return IsProtobuf(v.Type) && IsProtobuf(v.ListType) }

// Scale contains the fields of /scale, as paths such as .spec.replicas.
type Scale struct {
	SpecReplicas   []string
	StatusReplicas []string
	// Selector is empty if the kind has none.
	Selector []string
}

// Grace describes graceful deletion.
type Grace struct {
	Period time.Duration
	// Of returns the grace period of an object; nil means Period for all objects.
	Of func(obj runtime.Object) time.Duration
	// DeleteAfterPeriod makes the server itself remove the object at the end of the period.
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

// SelectableField is a field for field selectors.
type SelectableField struct {
	// Path is the left side in a selector, such as spec.referenceType.
	Path string
	// Is is the path in the primary kind, if it differs.
	Is    string
	Value func(obj runtime.Object) string
}

// AdmissionConstructor creates an admission hook for one server. The environment is the façade's handle on that
// server; define does not use it.
type AdmissionConstructor func(env any) (Admission, error)

// Admission is an admission hook. Attributes carry hub objects.
type Admission struct {
	// Mutating hooks may modify the object and run before validation.
	Mutating bool
	// On are the operations that Review is called for; empty means all.
	On     []admission.Operation
	Review func(ctx context.Context, a admission.Attributes) error
}

// BesideAdmission decides about a create or an update, given all other objects of the kind.
type BesideAdmission func(ctx context.Context, a admission.Attributes, existing []runtime.Object) error

// Facts returns the generated facts about the packages of the kind's versions in all groups, and of its subresources'
// messages.
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

// Primary returns the kind that owns the objects: the kind itself, or its primary kind if it is an alias.
func (k *Kind) Primary() *Kind {
	if k.AliasOf != nil {
		return k.AliasOf
	}
	return k
}

// Hub returns the version that all other versions are converted to.
func (k *Kind) Hub() *Version { return k.Primary().Versions[0] }

// AllVersions returns the versions of the kind's objects in all groups, the hub first.
func (k *Kind) AllVersions() []*Version {
	all := slices.Clone(k.Primary().Versions)
	for _, also := range k.Primary().Aliases {
		all = append(all, also.Versions...)
	}
	return all
}

// Stored returns the storage version.
func (k *Kind) Stored() *Version {
	if v := k.version(k.Primary().StoredAs); v != nil {
		return v
	}
	return k.Hub()
}

// version returns the version with a name, or nil. Names of versions outside the primary kind's group include the
// group.
func (k *Kind) version(name string) *Version {
	for _, v := range k.AllVersions() {
		if v.GroupVersion.String() == name || v.GroupVersion.Group == k.Primary().Group && v.GroupVersion.Version == name {
			return v
		}
	}
	return nil
}

// GroupResource returns the kind's group and resource.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// GroupKind returns the kind's group and name.
func (k *Kind) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: k.Group, Kind: k.Name}
}

// Add adds a kind to its group, which is created if necessary.
func (s *Server) Add(k *Kind) {
	i := slices.IndexFunc(s.Groups, func(g Group) bool { return g.Name == k.Group })
	if i < 0 {
		i = len(s.Groups)
		s.Groups = append(s.Groups, Group{Name: k.Group})
	}
	s.Groups[i].Kinds = append(s.Groups[i].Kinds, k)
}

// Owner returns the primary resource of an alias. It returns any other resource unchanged.
func (s *Server) Owner(resource schema.GroupResource) schema.GroupResource {
	for _, k := range s.Kinds() {
		if k.GroupResource() == resource {
			return k.Primary().GroupResource()
		}
	}
	return resource
}

// Kinds returns all kinds of the server in the order of declaration, including aliases.
func (s *Server) Kinds() []*Kind {
	var kinds []*Kind
	for _, g := range s.Groups {
		kinds = append(kinds, g.Kinds...)
	}
	return kinds
}

// Verbs returns the verbs of the kind's main endpoint: all verbs for a stored kind, and the supported ones for a
// virtual kind. It returns nil for a custom storage, whose verbs the definition does not contain.
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

// Updatable reports whether the kind's objects can be modified.
func (k *Kind) Updatable() bool {
	source := k.Primary().Source
	return source == nil || source.Update != nil
}

// Subresources returns the served subresources. It returns nil for a custom storage, whose subresources the
// definition does not contain.
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

// Hooks returns the names of the hooks that the kind has.
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
		{"canonicalize", k.Canonicalize != nil},
		{"validate", k.Validate != nil},
		{"validate create", k.ValidateCreate != nil},
		{"validate update", k.ValidateUpdate != nil},
		{"validate status", k.ValidateStatus != nil},
		{"warn", k.Warn != nil},
		{"admission", len(k.Admissions) > 0},
		{"admission of connections", len(k.ConnectAdmissions) > 0},
		{"admission of creates", len(k.CreateAdmissions) > 0},
		{"admission of updates", len(k.UpdateAdmissions) > 0},
		{"after create", k.AfterCreate != nil},
		{"after update", k.AfterUpdate != nil},
		{"after delete", k.AfterDelete != nil},
	} {
		if hook.set {
			names = append(names, hook.name)
		}
	}
	return names
}

// History is how long the revisions of a kind's objects are kept. The bounds hold together; 0 is no bound, or the default of
// Bytes.
type History struct {
	Age       time.Duration
	Revisions int
	Bytes     int64
}
