package annex

import (
	"context"
	"maps"
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
)

// object is a pointer to T that is a Kubernetes object.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// list is a pointer to L that is a Kubernetes list.
type list[L any] interface {
	*L
	runtime.Object
	metav1.ListInterface
}

// KindBuilder describes a kind whose hub is the Go type T. Its methods may be called in any order and return the
// builder; New reports all mistakes at once. Hooks get objects of the hub's type, whatever version a client uses.
// Hooks run concurrently for different requests. They must not keep their arguments and, unless their doc permits
// it, must not change them.
type KindBuilder[T any] struct {
	declared
}

type declared = define.Declared

// KindOf describes the kind whose hub version is the Go type T with the list type L, served as resource, its
// lower-case plural name. The hub is the version to and from which all other versions are converted, and the stored
// version unless StoredAs names another. It must be able to represent every value of every version. facts is the
// function API that annex generate wrote into T's package.
//
// The kind is namespaced, serves all verbs in all its versions, and has the subresource /status if T has a field
// Status. If its package has kubebuilder markers, these set the scope, names, columns and other properties, and the
// methods of the builder add to them. Markers above T itself then decide if there is a /status. See
// docs/reference/markers.md.
func KindOf[T, L any, PT object[T], PL list[L]](resource string, facts func() api.Facts) *KindBuilder[T] {
	t := reflect.TypeFor[T]()
	hub := &define.Version{Facts: facts, Type: t, ListType: reflect.TypeFor[L]()}
	k := &KindBuilder[T]{}
	*k.kind() = define.Kind{Resource: resource, Versions: []*define.Version{hub}}
	if t.Kind() == reflect.Struct {
		_, k.kind().Status = t.FieldByName("Status")
	}
	return k
}

func (k *KindBuilder[T]) kind() *define.Kind { return define.In(&k.declared) }

// ClusterScoped makes the kind cluster-scoped: its objects have no namespace.
func (k *KindBuilder[T]) ClusterScoped() *KindBuilder[T] {
	k.kind().ClusterScoped = true
	return k
}

// Singular sets the resource's singular name; the default is the kind in lower case.
func (k *KindBuilder[T]) Singular(name string) *KindBuilder[T] {
	k.kind().Singular = name
	return k
}

// ShortNames adds abbreviations for kubectl.
func (k *KindBuilder[T]) ShortNames(names ...string) *KindBuilder[T] {
	k.kind().ShortNames = append(k.kind().ShortNames, names...)
	return k
}

// Categories adds the kind to groups of resources, such as all.
func (k *KindBuilder[T]) Categories(names ...string) *KindBuilder[T] {
	k.kind().Categories = append(k.kind().Categories, names...)
	return k
}

// Versions adds versions beside the hub.
func (k *KindBuilder[T]) Versions(versions ...VersionOf[T]) *KindBuilder[T] {
	for _, v := range versions {
		k.kind().Versions = append(k.kind().Versions, v.versionOf(nil))
	}
	return k
}

// AlsoServedAs serves the same objects in another group, under another resource name, and by another kind if the
// versions have other Go types: an object written in one group is read, watched and deleted in both, with one uid
// and one resource version. A kind can thus move to another group, and its clients one by one, without a migration
// of data; see StoredAs and StoredUnder. The versions convert to the hub as those of Versions do. The kind's hooks,
// columns and subresources are the same in all groups. Short names and categories belong to the kind's own group
// only, and Options.StorageOf and the encryption configuration use the name of the kind's own resource.
func (k *KindBuilder[T]) AlsoServedAs(group, resource string, versions ...VersionOf[T]) *KindBuilder[T] {
	also := &define.Kind{Group: group, Resource: resource}
	for _, v := range versions {
		also.Versions = append(also.Versions, v.versionOf(nil))
	}
	k.kind().Aliases = append(k.kind().Aliases, also)
	return k
}

// StoredUnder stores the kind's objects under the keys of another resource: that of the group from which the kind
// has moved, even if that group is no longer served. The default is the kind's own resource.
func (k *KindBuilder[T]) StoredUnder(group, resource string) *KindBuilder[T] {
	k.kind().StoredUnder = schema.GroupResource{Group: group, Resource: resource}
	return k
}

// StoredAs names the version in which objects are stored; a version of AlsoServedAs is named with its group, as in
// example.com/v1. Objects that are stored in another version stay readable, and are converted when they are next
// written.
func (k *KindBuilder[T]) StoredAs(version string) *KindBuilder[T] {
	k.kind().StoredAs = version
	return k
}

// StoredIn keeps the kind's objects in a storage of their own instead of Options.Storage, such as memory.Storage()
// for objects that are written often and may be lost. A driver of the same name in the options replaces it, and
// Options.StorageOf takes precedence over it. Each storage counts its own resource versions.
func (k *KindBuilder[T]) StoredIn(storage Storage) *KindBuilder[T] {
	k.kind().Storage = storage
	return k
}

// StoredMediaType sets the media type in which the kind's objects are stored: application/json, or
// application/vnd.kubernetes.protobuf, for which the Go type of the stored version must have protobuf methods. The
// default is JSON: lists and reads in JSON then return the stored bytes unchanged. Protobuf takes less disk space.
// The storage Files holds only JSON, as YAML. Options.StorageMediaTypeOf, the operator's option, takes precedence.
// Objects that are stored in another media type stay readable, and are converted when they are next written or when
// storage rewrite runs.
func (k *KindBuilder[T]) StoredMediaType(mediaType string) *KindBuilder[T] {
	k.kind().StoredMediaType = mediaType
	return k
}

// Default fills in fields that a client omitted, in objects of the hub's version, after the generated defaults. It
// also runs on stored objects, and changes its argument.
func (k *KindBuilder[T]) Default(fill func(obj *T)) *KindBuilder[T] {
	k.kind().Versions[0].Default = func(obj runtime.Object) { fill(any(obj).(*T)) }
	return k
}

// ValidateName checks the name of a new object or, with prefix set, its generateName. It returns the problems as
// phrases such as "must be in lower case"; an empty list accepts the name. The default requires a DNS subdomain.
// validation.NameIsDNSLabel of k8s.io/apimachinery/pkg/api/validation is such a function. A name is part of paths,
// so names with a slash or a percent sign, "." and ".." are always rejected.
func (k *KindBuilder[T]) ValidateName(validate func(name string, prefix bool) []string) *KindBuilder[T] {
	k.kind().ValidateName = validate
	return k
}

// UnconditionalUpdate accepts updates without a resource version, which overwrite the stored object, as most of
// Kubernetes' own kinds do. The default is Options.UnrestrictedUpdate; without that, such updates get a 422.
func (k *KindBuilder[T]) UnconditionalUpdate() *KindBuilder[T] {
	k.kind().Unconditional = true
	return k
}

// CreateOnUpdate makes a PUT of a name that does not exist create the object, as with Kubernetes' leases. The
// caller needs the verb create besides update, and the response is 201. The default is 404. Apply creates objects
// in any case.
func (k *KindBuilder[T]) CreateOnUpdate() *KindBuilder[T] {
	k.kind().CreateOnUpdate = true
	return k
}

// PrepareForCreate changes an object before it is validated and created. Its status is empty already.
func (k *KindBuilder[T]) PrepareForCreate(prepare func(ctx context.Context, obj *T)) *KindBuilder[T] {
	k.kind().PrepareForCreate = func(ctx context.Context, obj runtime.Object) { prepare(ctx, any(obj).(*T)) }
	return k
}

// PrepareForUpdate changes an object before it is validated and replaces old. Its status is that of old already. It
// does not run for /status.
func (k *KindBuilder[T]) PrepareForUpdate(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForUpdate = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// Canonicalize puts an object that has been validated into its canonical form, before it is created or updated,
// through /status and other subresources as well: it can sort a list or bring a name into lower case, so that one
// value has one form. Validating admission sees the result. The form must be as valid as the object was, and depend on
// obj alone.
func (k *KindBuilder[T]) Canonicalize(canonical func(obj *T)) *KindBuilder[T] {
	k.kind().Canonicalize = func(obj runtime.Object) { canonical(any(obj).(*T)) }
	return k
}

// AfterCreate is called with each object that a request, or a file of the storage files, has created, before the
// response. AfterUpdate is called after updates of any endpoint, AfterDelete with the last state of a removed object.
// Dry runs are left out, and so are objects that expire, and the writes of other servers over one etcd.
//
// The write is done, and no error can undo it. A server that ends in between makes no call, now or later: use these
// hooks for caches and metrics of the process, and a Controller for everything that must happen. They delay the
// response, and run concurrently.
func (k *KindBuilder[T]) AfterCreate(created func(obj *T)) *KindBuilder[T] {
	k.kind().AfterCreate = func(obj runtime.Object) { created(any(obj).(*T)) }
	return k
}

// AfterUpdate is called with each object that has been updated; see AfterCreate.
func (k *KindBuilder[T]) AfterUpdate(updated func(obj *T)) *KindBuilder[T] {
	k.kind().AfterUpdate = func(obj runtime.Object) { updated(any(obj).(*T)) }
	return k
}

// AfterDelete is called with the last state of each object that has been removed, after its grace period and its last
// finalizer; see AfterCreate.
func (k *KindBuilder[T]) AfterDelete(deleted func(obj *T)) *KindBuilder[T] {
	k.kind().AfterDelete = func(obj runtime.Object) { deleted(any(obj).(*T)) }
	return k
}

// PrepareForStatus changes an object before it is validated and its status replaces that of old through /status.
// All other fields of obj are those of old already.
func (k *KindBuilder[T]) PrepareForStatus(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForStatus = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// Validate checks an object on every create and every update of the main endpoint, whatever version the client
// uses. An empty list accepts it.
func (k *KindBuilder[T]) Validate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*T))
	}
	return k
}

// ValidateCreate checks a new object in addition to Validate, for rules that hold at creation and may be broken
// later.
func (k *KindBuilder[T]) ValidateCreate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateCreate = func(ctx context.Context, obj runtime.Object) field.ErrorList { return validate(ctx, any(obj).(*T)) }
	return k
}

// ValidateUpdate checks an update in addition to Validate, for fields that may not change from old to obj.
func (k *KindBuilder[T]) ValidateUpdate(validate func(ctx context.Context, obj, old *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateUpdate = updateRule(validate)
	return k
}

// ValidateStatus checks updates of /status, for which Validate does not run.
func (k *KindBuilder[T]) ValidateStatus(validate func(ctx context.Context, obj, old *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateStatus = updateRule(validate)
	return k
}

func updateRule[T any](
	validate func(ctx context.Context, obj, old *T) field.ErrorList,
) func(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*T), any(old).(*T))
	}
}

// ValidationOptions enables and disables options, on which validation rules depend through the tags
// +k8s:ifEnabled(Name) and +k8s:ifDisabled(Name), of the kind and of the requests and options of its
// subresources. An option that is not in the map has the value of the process's feature gate of the same name, and
// is disabled if there is no such feature. New rejects a name that no tag uses. The rules of the hub's tags run on
// every write of the main endpoint and of /status, whatever version the client uses; the rules of another version
// run when a client uses that version.
func (k *KindBuilder[T]) ValidationOptions(options map[string]bool) *KindBuilder[T] {
	k.kind().ValidationOptions = maps.Clone(options)
	return k
}

// Warn returns warnings about an accepted object for the client that wrote it: short, and without a leading
// "Warning:".
func (k *KindBuilder[T]) Warn(warn func(ctx context.Context, obj *T) []string) *KindBuilder[T] {
	k.kind().Warn = func(ctx context.Context, obj runtime.Object) []string { return warn(ctx, any(obj).(*T)) }
	return k
}

// WithoutStatus serves no /status: the field Status is then written with the rest of the object.
func (k *KindBuilder[T]) WithoutStatus() *KindBuilder[T] {
	k.kind().Status, k.kind().WithoutStatus = false, true
	return k
}

// WithoutGeneration leaves metadata.generation alone, as Kubernetes does for kinds without a spec, such as
// ConfigMap. Otherwise it is 1 in a new object, and rises with every change except of metadata and of a status with
// an endpoint of its own; values from clients are ignored. It is for kinds that must be stored as another server
// stores them.
func (k *KindBuilder[T]) WithoutGeneration() *KindBuilder[T] {
	k.kind().WithoutGeneration = true
	return k
}

// Scale serves /scale. specReplicas and statusReplicas are paths of int32 or int64 fields that exist in every
// served version, such as .spec.replicas and .status.replicas. selector is empty, or the path of a
// metav1.LabelSelector, such as .spec.selector, or of a string field that holds a serialized label selector.
func (k *KindBuilder[T]) Scale(specReplicas, statusReplicas, selector string) *KindBuilder[T] {
	k.kind().Scale = &define.Scale{SpecReplicas: fieldPath(specReplicas), StatusReplicas: fieldPath(statusReplicas)}
	if selector != "" {
		k.kind().Scale.Selector = fieldPath(selector)
	}
	return k
}

func fieldPath(path string) []string {
	return strings.Split(strings.TrimPrefix(path, "."), ".")
}

// TTL makes the server delete an object that has not been written for the given time, as Kubernetes' events. It
// must be whole seconds; 0 means that objects do not expire.
func (k *KindBuilder[T]) TTL(ttl time.Duration) *KindBuilder[T] {
	k.kind().TTL = ttl
	return k
}

// History is how long the revisions of a kind's objects are kept for clients, see KindBuilder.History.
type History = config.History

// History keeps the revisions of the kind's objects, with the names of the users who wrote them, for /history and the verbs
// history, diff, undo and deleted of the kubectl plugin: for some time, such as History{Age: 30 * 24 * time.Hour}, in a
// number of each object, or both. Without it, only the revisions that watches need are there, without users. The storages
// Embedded and Files keep them on disk, and Memory in memory. It has no effect in etcd, which keeps them until it is compacted,
// without users. Options.HistoryOf, the operator's option, takes precedence.
func (k *KindBuilder[T]) History(keep History) *KindBuilder[T] {
	k.kind().History = &define.History{Age: keep.Age, Revisions: keep.Revisions, Bytes: keep.Bytes}
	return k
}

// GracePeriod makes deletion graceful: a delete sets deletionTimestamp and deletionGracePeriodSeconds, to period
// unless the client requests another, and a delete with grace period 0 removes the object. A second delete can only
// shorten the remaining time. The period must be whole seconds, at least one.
func (k *KindBuilder[T]) GracePeriod(period time.Duration) *KindBuilder[T] {
	k.grace().Period = period
	return k
}

// GracePeriodOf computes the grace period from the object to be deleted, and overrides GracePeriod. The result is
// rounded down to whole seconds. An object whose period is 0 or less is deleted at once, whatever the client
// requests, as a pod that has not been scheduled to a node.
func (k *KindBuilder[T]) GracePeriodOf(period func(obj *T) time.Duration) *KindBuilder[T] {
	k.grace().Of = func(obj runtime.Object) time.Duration { return period(any(obj).(*T)) }
	return k
}

// DeleteAfterGracePeriod makes the server itself delete an object at the end of its grace period. The timer
// survives a restart.
func (k *KindBuilder[T]) DeleteAfterGracePeriod() *KindBuilder[T] {
	k.grace().DeleteAfterPeriod = true
	return k
}

func (k *KindBuilder[T]) grace() *define.Grace {
	if k.kind().Grace == nil {
		k.kind().Grace = &define.Grace{}
	}
	return k.kind().Grace
}

// DefaultRoles adds the kind to the default roles of a standalone server, as kube-apiserver does for its own kinds:
// the role view may read its objects, their status and their scale; edit and admin may also write, delete and scale
// them. Role grants other subresources. Without DefaultRoles and Role, only roles that are written for the kind, or
// for all kinds, grant access to it.
func (k *KindBuilder[T]) DefaultRoles() *KindBuilder[T] {
	k.kind().DefaultRoles = true
	return k
}

// Role grants verbs, such as get, list or create, on the kind's objects to a role, or on a subresource if that is
// not empty. The role is view, edit or admin, or any other name, for which the server creates a ClusterRole named
// GROUP:ROLE. A binding gives the role to users:
//
//	kubectl create rolebinding anna --clusterrole edit --user anna
//
// At each start, the server writes these grants into ClusterRoles that are aggregated into view, edit and admin. An
// aggregated server leaves roles to its cluster.
func (k *KindBuilder[T]) Role(role, subresource string, verbs ...string) *KindBuilder[T] {
	k.kind().Grants = append(k.kind().Grants, define.Grant{Role: role, Subresource: subresource, Verbs: verbs})
	return k
}

// Column is a column in the output of kubectl get.
type Column[T any] struct {
	// Name is the heading, such as Phase.
	Name string
	// Type is string (the default), integer, number, boolean or date.
	Type string
	// Format is an OpenAPI format of the type, such as int32; optional.
	Format      string
	Description string
	// Wide columns are shown only by kubectl get -o wide.
	Wide bool
	// Value returns the cell: a string, boolean, number, metav1.Time, or any value with a String method; nil leaves
	// the cell empty.
	Value func(obj *T) any
}

// Columns adds columns between the name and the age.
func (k *KindBuilder[T]) Columns(columns ...Column[T]) *KindBuilder[T] {
	for _, c := range columns {
		column := define.Column{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description, Wide: c.Wide}
		if column.Type == "" {
			column.Type = "string"
		}
		if column.Description == "" {
			column.Description = c.Name
		}
		if c.Value != nil {
			column.Value = func(obj runtime.Object) any { return c.Value(any(obj).(*T)) }
		}
		k.kind().Columns = append(k.kind().Columns, column)
	}
	return k
}

// SelectableField makes a field usable in field selectors, besides metadata.name and metadata.namespace.
// The path, such as spec.referenceType, must exist in every served version.
func (k *KindBuilder[T]) SelectableField(path string, value func(obj *T) string) *KindBuilder[T] {
	k.kind().Selectable = append(k.kind().Selectable, define.SelectableField{
		Path:  strings.TrimPrefix(path, "."),
		Value: func(obj runtime.Object) string { return value(any(obj).(*T)) },
	})
	return k
}

// IndexFields indexes selectable fields: a list whose field selector requires a value of an indexed field, as in
// spec.referenceType=Fischer, reads only the objects with that value. The first such list after a start builds the
// indexes. They take about 150 bytes of memory for each object and field; docs/howto/selectors.md describes when
// that is worthwhile.
func (k *KindBuilder[T]) IndexFields(paths ...string) *KindBuilder[T] {
	for _, path := range paths {
		k.kind().IndexFields = append(k.kind().IndexFields, strings.TrimPrefix(path, "."))
	}
	return k
}

// IndexLabels is IndexFields for labels by key, and for label selectors, including sets such as app in (web, api).
// Labels that list selectors use are indexed even without it, within bounds and from 1,000 objects on, but not over
// etcd.
func (k *KindBuilder[T]) IndexLabels(keys ...string) *KindBuilder[T] {
	k.kind().IndexLabels = append(k.kind().IndexLabels, keys...)
	return k
}
