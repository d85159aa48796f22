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
// builder; New reports all mistakes together. Hooks get objects of the hub's type, whatever version the client uses.
// Hooks run concurrently for different requests. They must not keep their arguments, and must not change them unless
// documented.
type KindBuilder[T any] struct {
	declared
}

type declared = define.Declared

// KindOf describes the kind whose hub version is the Go type T with the list type L, served as resource, its
// lower-case plural name. The hub is the version to which all others convert, and the storage version unless StoredAs
// names another. It must be able to represent every value of every version. facts is the function API that annex
// generate wrote into T's package.
//
// The kind is namespaced and serves all verbs in all its versions, and the subresource /status if T has a field
// Status. If its package has kubebuilder markers, they set the scope, the names, the columns and their other
// properties; the methods of the builder add to them. Markers directly above T decide about /status. See
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

// ClusterScoped makes the kind's objects cluster-scoped.
func (k *KindBuilder[T]) ClusterScoped() *KindBuilder[T] {
	k.kind().ClusterScoped = true
	return k
}

// Singular sets the resource's singular name; the default is the kind in lower case.
func (k *KindBuilder[T]) Singular(name string) *KindBuilder[T] {
	k.kind().Singular = name
	return k
}

// ShortNames sets abbreviations that kubectl understands.
func (k *KindBuilder[T]) ShortNames(names ...string) *KindBuilder[T] {
	k.kind().ShortNames = append(k.kind().ShortNames, names...)
	return k
}

// Categories sets groups of resources to which the kind belongs, such as all.
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
// versions have other Go types. An object written in one group is read, watched and deleted in both, with one UID and
// one resource version. A kind can thus move to another group, and its clients one by one, without a migration of
// data; see StoredAs and StoredUnder. The versions convert to the hub like those of Versions. Hooks, columns and
// subresources are the same in all groups. Short names and categories apply to the kind's own group only; so does its
// name in Options.StorageOf and in an encryption configuration.
func (k *KindBuilder[T]) AlsoServedAs(group, resource string, versions ...VersionOf[T]) *KindBuilder[T] {
	also := &define.Kind{Group: group, Resource: resource}
	for _, v := range versions {
		also.Versions = append(also.Versions, v.versionOf(nil))
	}
	k.kind().Aliases = append(k.kind().Aliases, also)
	return k
}

// StoredUnder stores the kind's objects in the place of another resource, where they already are: that of the group
// from which the kind has moved, even if that group is no longer served. The default is the place of the kind's own
// resource.
func (k *KindBuilder[T]) StoredUnder(group, resource string) *KindBuilder[T] {
	k.kind().StoredUnder = schema.GroupResource{Group: group, Resource: resource}
	return k
}

// StoredAs sets the storage version; a version of AlsoServedAs includes its group, as in example.com/v1. Objects
// stored in another version stay readable, and are stored in this version by their next write.
func (k *KindBuilder[T]) StoredAs(version string) *KindBuilder[T] {
	k.kind().StoredAs = version
	return k
}

// StoredIn stores the kind's objects in another storage than Options.Storage, such as memory.Storage() for objects
// that change often and may be lost. A driver of the same name in the options replaces it, and Options.StorageOf
// overrides it. Each storage has its own sequence of resource versions.
func (k *KindBuilder[T]) StoredIn(storage Storage) *KindBuilder[T] {
	k.kind().Storage = storage
	return k
}

// StoredMediaType sets the media type of the kind's stored objects: application/json, or
// application/vnd.kubernetes.protobuf, for which the Go type of the storage version must have protobuf methods. The
// default is JSON, whose stored bytes answer lists and reads as JSON directly; protobuf needs less disk space. The
// storage files supports only JSON, as YAML. The operator may override the media type with Options.StorageMediaTypeOf.
// Objects stored in another media type stay readable, and are stored in this media type by their next write or by
// storage rewrite.
func (k *KindBuilder[T]) StoredMediaType(mediaType string) *KindBuilder[T] {
	k.kind().StoredMediaType = mediaType
	return k
}

// Default sets defaults in objects of the hub's version, after the generated defaults. It also sees stored objects. It
// changes its argument.
func (k *KindBuilder[T]) Default(fill func(obj *T)) *KindBuilder[T] {
	k.kind().Versions[0].Default = func(obj runtime.Object) { fill(any(obj).(*T)) }
	return k
}

// ValidateName checks the name of an object to create, or with prefix its generateName. It returns the mistakes in
// phrases such as "must be in lower case"; an empty list accepts the name. The default requires a DNS subdomain.
// validation.NameIsDNSLabel of k8s.io/apimachinery/pkg/api/validation is such a function. Names are part of paths, so
// "." and "..", and names with a slash or a percent sign, are always rejected.
func (k *KindBuilder[T]) ValidateName(validate func(name string, prefix bool) []string) *KindBuilder[T] {
	k.kind().ValidateName = validate
	return k
}

// UnconditionalUpdate accepts updates without a resource version, which overwrite the current object, as most of
// Kubernetes' own kinds do. The default is Options.UnrestrictedUpdate, without which such updates are answered with
// 422.
func (k *KindBuilder[T]) UnconditionalUpdate() *KindBuilder[T] {
	k.kind().Unconditional = true
	return k
}

// CreateOnUpdate lets a PUT create an object that does not exist, as with Kubernetes' leases. The caller needs the
// verb create besides update, and the status is 201. The default is 404. Apply creates objects in either case.
func (k *KindBuilder[T]) CreateOnUpdate() *KindBuilder[T] {
	k.kind().CreateOnUpdate = true
	return k
}

// PrepareForCreate changes an object before it is validated and created. Its status is already empty.
func (k *KindBuilder[T]) PrepareForCreate(prepare func(ctx context.Context, obj *T)) *KindBuilder[T] {
	k.kind().PrepareForCreate = func(ctx context.Context, obj runtime.Object) { prepare(ctx, any(obj).(*T)) }
	return k
}

// PrepareForUpdate changes an object before it is validated and replaces old. Its status is already that of old. It
// does not run for /status.
func (k *KindBuilder[T]) PrepareForUpdate(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForUpdate = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// PrepareForStatus changes an object before it is validated and its status replaced through /status. All other fields
// of obj are already those of old.
func (k *KindBuilder[T]) PrepareForStatus(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForStatus = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// Validate checks an object on every create and update of the main endpoint, whatever version the client uses. An
// empty list accepts it.
func (k *KindBuilder[T]) Validate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*T))
	}
	return k
}

// ValidateCreate checks an object to create, in addition to Validate. Use it for rules that later updates may break.
func (k *KindBuilder[T]) ValidateCreate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateCreate = func(ctx context.Context, obj runtime.Object) field.ErrorList { return validate(ctx, any(obj).(*T)) }
	return k
}

// ValidateUpdate checks the change from old to obj, in addition to Validate.
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

// ValidationOptions turns on and off the options on which conditional rules depend: the rules with the tags
// +k8s:ifEnabled(Name) and +k8s:ifDisabled(Name), of the kind and of the requests and options of its
// subresources. An option that is not in the map has the value of the process's feature gate of the same name, and is
// off without such a feature. New rejects a name that is in no tag. The rules of the hub's tags run on every write of
// the main endpoint and of /status, whatever version the client uses; those of another version run when a client uses
// it.
func (k *KindBuilder[T]) ValidationOptions(options map[string]bool) *KindBuilder[T] {
	k.kind().ValidationOptions = maps.Clone(options)
	return k
}

// Warn returns warnings about an accepted object, which its writer gets. Keep them short, without a leading
// "Warning:".
func (k *KindBuilder[T]) Warn(warn func(ctx context.Context, obj *T) []string) *KindBuilder[T] {
	k.kind().Warn = func(ctx context.Context, obj runtime.Object) []string { return warn(ctx, any(obj).(*T)) }
	return k
}

// WithoutStatus serves no /status: clients write the field Status together with the other fields.
func (k *KindBuilder[T]) WithoutStatus() *KindBuilder[T] {
	k.kind().Status, k.kind().WithoutStatus = false, true
	return k
}

// WithoutGeneration leaves metadata.generation alone, as Kubernetes does for kinds without a spec, such as ConfigMap.
// Otherwise it is 1 in a new object, and increases with every change except of metadata and of a status with its own
// endpoint; values of clients are ignored. Use it for kinds that must be stored in the same form as by another server.
func (k *KindBuilder[T]) WithoutGeneration() *KindBuilder[T] {
	k.kind().WithoutGeneration = true
	return k
}

// Scale serves /scale. The paths of replicas lead to int32 or int64 fields that exist in every served version, such as
// .spec.replicas and .status.replicas. selector is the path of a string field with a serialized label selector, or of
// a metav1.LabelSelector, such as .spec.selector; it may be empty.
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

// TTL makes the server delete an object that was not written for this long, as with Kubernetes' events. It must be a
// number of whole seconds; 0 means never.
func (k *KindBuilder[T]) TTL(ttl time.Duration) *KindBuilder[T] {
	k.kind().TTL = ttl
	return k
}

// GracePeriod makes deletion graceful: a delete sets deletionTimestamp and deletionGracePeriodSeconds, to period
// unless the client requests another, and a delete with grace period 0 removes the object. A second delete can only
// shorten the remaining time. The period must be a number of whole seconds, at least one.
func (k *KindBuilder[T]) GracePeriod(period time.Duration) *KindBuilder[T] {
	k.grace().Period = period
	return k
}

// GracePeriodOf is GracePeriod by object: period returns the grace period of an object to delete, truncated to whole
// seconds. It overrides GracePeriod. An object whose period is 0 or less is deleted at once, whatever the client
// requests, as with a pod that has no node yet.
func (k *KindBuilder[T]) GracePeriodOf(period func(obj *T) time.Duration) *KindBuilder[T] {
	k.grace().Of = func(obj runtime.Object) time.Duration { return period(any(obj).(*T)) }
	return k
}

// DeleteAfterGracePeriod makes the server delete an object at the end of its grace period. The timer survives a
// restart.
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

// DefaultRoles adds the kind to the roles that every standalone server has, as kube-apiserver does for its own kinds:
// the role view may read objects, their status and their scale; the roles edit and admin may also write, delete and
// scale them. Grant other subresources with Role. Without DefaultRoles and Role, only roles written for the kind, or
// for all kinds, grant rights on it.
func (k *KindBuilder[T]) DefaultRoles() *KindBuilder[T] {
	k.kind().DefaultRoles = true
	return k
}

// Role grants a role verbs, such as get, list or create, on the kind's objects, or on the given subresource if it is
// not empty. The role is view, edit or admin, or another name, for which the server creates a ClusterRole named
// GROUP:ROLE. A binding gives callers the role:
//
//	kubectl create rolebinding anna --clusterrole edit --user anna
//
// At each start, the server writes the grants of its kinds into ClusterRoles that are aggregated into view, edit and
// admin. An aggregated server leaves roles to its cluster.
func (k *KindBuilder[T]) Role(role, subresource string, verbs ...string) *KindBuilder[T] {
	k.kind().Grants = append(k.kind().Grants, define.Grant{Role: role, Subresource: subresource, Verbs: verbs})
	return k
}

// Column is a column of the table that kubectl get prints.
type Column[T any] struct {
	// Name is the heading, such as Phase.
	Name string
	// Type is one of string (the default), integer, number, boolean, date.
	Type string
	// Format is an OpenAPI format of the type, such as int32; optional.
	Format      string
	Description string
	// Wide columns appear only with -o wide.
	Wide bool
	// Value returns the cell: a string, boolean, number, metav1.Time, or anything
	// that prints itself; nil prints as nothing.
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

// SelectableField lets field selectors use a field besides metadata.name and metadata.namespace. The path, such as
// spec.referenceType, must exist in every served version.
func (k *KindBuilder[T]) SelectableField(path string, value func(obj *T) string) *KindBuilder[T] {
	k.kind().Selectable = append(k.kind().Selectable, define.SelectableField{
		Path:  strings.TrimPrefix(path, "."),
		Value: func(obj runtime.Object) string { return value(any(obj).(*T)) },
	})
	return k
}

// IndexFields indexes selectable fields: a list whose field selector requires a value of an indexed field, as in
// spec.referenceType=Fischer, reads only the objects with that value. The first such list after a start builds the
// indexes. They need about 150 bytes of memory for each object and field; docs/howto/selectors.md explains when that
// is worthwhile.
func (k *KindBuilder[T]) IndexFields(paths ...string) *KindBuilder[T] {
	for _, path := range paths {
		k.kind().IndexFields = append(k.kind().IndexFields, strings.TrimPrefix(path, "."))
	}
	return k
}

// IndexLabels is IndexFields for labels, which are named by their keys, and for label selectors, including sets such
// as app in (web, api). Labels that lists select by are indexed without it, within bounds and from 1,000 objects on,
// except over etcd.
func (k *KindBuilder[T]) IndexLabels(keys ...string) *KindBuilder[T] {
	k.kind().IndexLabels = append(k.kind().IndexLabels, keys...)
	return k
}
