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

// KindBuilder describes a kind whose hub is the Go type T. Its methods may be
// called in any order and return the builder; mistakes are reported by New, all
// at once. Hooks get objects of the hub's type whatever version a client speaks.
// Hooks run concurrently for different requests; they must not keep or, unless
// they say so, change the objects that they are given.
type KindBuilder[T any] struct {
	declared
}

type declared = define.Declared

// KindOf describes the kind whose hub version is the Go type T with the list type
// L, served as resource, its lower-case plural name. The hub is the version that
// all others convert to, and the one that objects are stored in unless StoredAs
// says otherwise; it must be able to hold whatever any version can say. facts is
// the function API that annex generate wrote into T's package.
//
// The kind is namespaced and serves all verbs in all its versions, and the
// subresource /status if T has a field Status. If its package has kubebuilder markers,
// they decide about the scope, names, columns and whatever else they say, and what is
// said here adds to it; about /status decide markers above T itself. See
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

// ClusterScoped puts the kind's objects outside namespaces.
func (k *KindBuilder[T]) ClusterScoped() *KindBuilder[T] {
	k.kind().ClusterScoped = true
	return k
}

// Singular is the resource's singular name; the default is the kind in lower case.
func (k *KindBuilder[T]) Singular(name string) *KindBuilder[T] {
	k.kind().Singular = name
	return k
}

// ShortNames are abbreviations that kubectl understands.
func (k *KindBuilder[T]) ShortNames(names ...string) *KindBuilder[T] {
	k.kind().ShortNames = append(k.kind().ShortNames, names...)
	return k
}

// Categories are groups of resources that the kind belongs to, such as all.
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

// AlsoServedAs serves the same objects in another group, under another resource name,
// and by another kind if the versions have other Go types: what is written in one
// group is read, watched and deleted in both, with one uid and one resource version.
// That is how a kind moves to another group, and its clients one by one, without a
// migration of data; see StoredAs and StoredUnder. The versions convert to the hub as
// those of Versions do. The kind's hooks, columns and subresources are the same in
// all groups; short names and categories stay with the kind's own, and so does its
// name for Options.StorageOf and in an encryption's configuration.
func (k *KindBuilder[T]) AlsoServedAs(group, resource string, versions ...VersionOf[T]) *KindBuilder[T] {
	also := &define.Kind{Group: group, Resource: resource}
	for _, v := range versions {
		also.Versions = append(also.Versions, v.versionOf(nil))
	}
	k.kind().Aliases = append(k.kind().Aliases, also)
	return k
}

// StoredUnder has the kind's objects take the place in storage of another resource,
// where they have been: that of the group that the kind has moved from, also when
// that is not served any more. The default is the kind's own.
func (k *KindBuilder[T]) StoredUnder(group, resource string) *KindBuilder[T] {
	k.kind().StoredUnder = schema.GroupResource{Group: group, Resource: resource}
	return k
}

// StoredAs names the version in which objects are stored, a version of AlsoServedAs
// with its group, as in example.com/v1. Objects that are stored in another version
// stay readable and change over when they are next written.
func (k *KindBuilder[T]) StoredAs(version string) *KindBuilder[T] {
	k.kind().StoredAs = version
	return k
}

// StoredIn keeps the kind's objects in a storage of their own, such as memory.Storage()
// for what is written often and may be lost, instead of Options.Storage. A driver of the
// same name in the options takes its place, and Options.StorageOf wins over it. Each
// storage counts its own resource versions.
func (k *KindBuilder[T]) StoredIn(storage Storage) *KindBuilder[T] {
	k.kind().Storage = storage
	return k
}

// StoredMediaType says what the kind's objects are encoded in when they are stored:
// application/json, or application/vnd.kubernetes.protobuf, for which the Go type of
// the version that they are stored in must have protobuf methods. The default is
// JSON, which lists and reads as JSON are answered with as it is; protobuf takes less of the disk. Files hold
// nothing but JSON, as YAML. The operator may say otherwise with
// Options.StorageMediaTypeOf. Objects that are stored in another media type stay
// readable and change over when they are next written, or when storage rewrite does
// it.
func (k *KindBuilder[T]) StoredMediaType(mediaType string) *KindBuilder[T] {
	k.kind().StoredMediaType = mediaType
	return k
}

// Default fills in what a client left out, in objects of the hub's version, after
// the generated defaults. It sees stored objects too, and changes its argument.
func (k *KindBuilder[T]) Default(fill func(obj *T)) *KindBuilder[T] {
	k.kind().Versions[0].Default = func(obj runtime.Object) { fill(any(obj).(*T)) }
	return k
}

// ValidateName checks the name of an object that is created, or with prefix its generateName, and returns
// what is wrong with it, in phrases such as "must be in lower case"; an empty list accepts it. The default wants a DNS
// subdomain. validation.NameIsDNSLabel of k8s.io/apimachinery/pkg/api/validation is such a function. A name is part of
// paths, so one with a slash or a percent sign, "." and ".." are refused in any case.
func (k *KindBuilder[T]) ValidateName(validate func(name string, prefix bool) []string) *KindBuilder[T] {
	k.kind().ValidateName = validate
	return k
}

// UnconditionalUpdate accepts updates without a resource version, which overwrite whatever is there, as most of
// Kubernetes' own kinds do. The default is Options.UnrestrictedUpdate, and without that they are answered with 422.
func (k *KindBuilder[T]) UnconditionalUpdate() *KindBuilder[T] {
	k.kind().Unconditional = true
	return k
}

// CreateOnUpdate has a PUT of a name that does not exist create the object, as with Kubernetes' leases. The caller
// needs the verb create besides update, and the answer is 201. The default is 404. Apply creates either way.
func (k *KindBuilder[T]) CreateOnUpdate() *KindBuilder[T] {
	k.kind().CreateOnUpdate = true
	return k
}

// PrepareForCreate changes an object that is about to be created, before it is
// validated. Status is empty already.
func (k *KindBuilder[T]) PrepareForCreate(prepare func(ctx context.Context, obj *T)) *KindBuilder[T] {
	k.kind().PrepareForCreate = func(ctx context.Context, obj runtime.Object) { prepare(ctx, any(obj).(*T)) }
	return k
}

// PrepareForUpdate changes an object that is about to replace old, before it is
// validated. Status is the old one already. It does not run for /status.
func (k *KindBuilder[T]) PrepareForUpdate(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForUpdate = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// PrepareForStatus changes an object whose status is about to be replaced through /status, before it is validated. All of
// obj but its status is that of old already.
func (k *KindBuilder[T]) PrepareForStatus(prepare func(ctx context.Context, obj, old *T)) *KindBuilder[T] {
	k.kind().PrepareForStatus = func(ctx context.Context, obj, old runtime.Object) {
		prepare(ctx, any(obj).(*T), any(old).(*T))
	}
	return k
}

// Validate checks an object on every create and every update of the main
// endpoint, whatever version the client speaks. An empty list accepts it.
func (k *KindBuilder[T]) Validate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().Validate = func(ctx context.Context, obj runtime.Object) field.ErrorList {
		return validate(ctx, any(obj).(*T))
	}
	return k
}

// ValidateCreate checks, besides Validate, an object that is to be created: what must be so at the beginning and may
// change later.
func (k *KindBuilder[T]) ValidateCreate(validate func(ctx context.Context, obj *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateCreate = func(ctx context.Context, obj runtime.Object) field.ErrorList { return validate(ctx, any(obj).(*T)) }
	return k
}

// ValidateUpdate checks, besides Validate, what may not change from old to obj.
func (k *KindBuilder[T]) ValidateUpdate(validate func(ctx context.Context, obj, old *T) field.ErrorList) *KindBuilder[T] {
	k.kind().ValidateUpdate = updateRule(validate)
	return k
}

// ValidateStatus checks updates of /status, which Validate does not see.
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

// ValidationOptions switches options on and off, for rules that depend on one: the tags
// +k8s:ifEnabled(Name) and +k8s:ifDisabled(Name), of the kind and of the requests and options of its
// subresources. An option that is not in the map has the value of the process's feature gate of the same
// name, and is off if there is no such feature. New refuses a name that is in no tag. The rules
// that the hub's tags make run on every write of the main endpoint and of /status,
// whatever version the client speaks, those of another version when a client speaks it.
func (k *KindBuilder[T]) ValidationOptions(options map[string]bool) *KindBuilder[T] {
	k.kind().ValidationOptions = maps.Clone(options)
	return k
}

// Warn returns warnings about an accepted object that its writer gets to see:
// short, and without a leading "Warning:".
func (k *KindBuilder[T]) Warn(warn func(ctx context.Context, obj *T) []string) *KindBuilder[T] {
	k.kind().Warn = func(ctx context.Context, obj runtime.Object) []string { return warn(ctx, any(obj).(*T)) }
	return k
}

// WithoutStatus serves no /status: the field Status is then written with the rest
// of the object.
func (k *KindBuilder[T]) WithoutStatus() *KindBuilder[T] {
	k.kind().Status, k.kind().WithoutStatus = false, true
	return k
}

// WithoutGeneration leaves metadata.generation alone, as Kubernetes does with kinds that
// have no spec to count, such as ConfigMap. Otherwise it is 1 in a new object, and rises
// with every change but of metadata and of a status with an endpoint of its own, whatever
// clients say. It is for kinds that have to be stored as another server stores them.
func (k *KindBuilder[T]) WithoutGeneration() *KindBuilder[T] {
	k.kind().WithoutGeneration = true
	return k
}

// Scale serves /scale. The paths lead to int32 or int64 fields that exist in every served
// version, such as .spec.replicas and .status.replicas; selector is the path of a
// string field that holds a serialized label selector, or of a metav1.LabelSelector, such as .spec.selector, or empty.
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

// TTL has the server delete an object when it has not been written for that long, as
// Kubernetes' events are. It is a number of whole seconds; 0 is for ever.
func (k *KindBuilder[T]) TTL(ttl time.Duration) *KindBuilder[T] {
	k.kind().TTL = ttl
	return k
}

// GracePeriod makes deletion graceful: a delete sets deletionTimestamp and
// deletionGracePeriodSeconds, to period unless the client asks for another, and
// the object goes when a delete with grace period 0 comes. A second delete can
// only shorten the time left. The period is a number of whole seconds, at least one.
func (k *KindBuilder[T]) GracePeriod(period time.Duration) *KindBuilder[T] {
	k.grace().Period = period
	return k
}

// GracePeriodOf is GracePeriod by object: a number of seconds, cut to whole ones, that period takes from an object that is
// to be deleted. It overrides GracePeriod. An object whose period is 0 or less goes at once, whatever the client asks
// for, as a pod does that no node has got yet.
func (k *KindBuilder[T]) GracePeriodOf(period func(obj *T) time.Duration) *KindBuilder[T] {
	k.grace().Of = func(obj runtime.Object) time.Duration { return period(any(obj).(*T)) }
	return k
}

// DeleteAfterGracePeriod makes the server itself delete an object at the end of its
// grace period. The timer survives a restart.
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

// DefaultRoles puts the kind into the roles that every server that stands alone has, as
// kube-apiserver's do with its own kinds: those who have the role view may read its objects,
// their status and their scale, and those who have edit or admin may write and delete them
// as well, and scale them. Other subresources are granted with Role. Without DefaultRoles and
// Role, only roles that are written for the kind, or for all kinds, say something about it.
func (k *KindBuilder[T]) DefaultRoles() *KindBuilder[T] {
	k.kind().DefaultRoles = true
	return k
}

// Role lets those who have a role use verbs, such as get, list or create, on the kind's
// objects, or on a subresource of them if that is not empty. The role is view, edit or
// admin, or another one, which is made as a ClusterRole named GROUP:ROLE. Callers have it by
// a binding:
//
//	kubectl create rolebinding anna --clusterrole edit --user anna
//
// The server writes what its kinds grant at each start, into ClusterRoles that are aggregated
// into view, edit and admin. An aggregated server leaves all that to its cluster.
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
	// Wide columns are shown by -o wide only.
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

// SelectableField lets field selectors name a field besides metadata.name and
// metadata.namespace. The path, such as spec.referenceType, must exist in every
// served version.
func (k *KindBuilder[T]) SelectableField(path string, value func(obj *T) string) *KindBuilder[T] {
	k.kind().Selectable = append(k.kind().Selectable, define.SelectableField{
		Path:  strings.TrimPrefix(path, "."),
		Value: func(obj runtime.Object) string { return value(any(obj).(*T)) },
	})
	return k
}

// IndexFields indexes selectable fields: a list whose field selector asks for a value
// of one, as in spec.referenceType=Fischer, looks at the objects with that value and
// not at all of them. The first such list after a start builds the indexes. They take
// about 150 bytes of memory for each object and field; see docs/howto/selectors.md for when
// that is worth it.
func (k *KindBuilder[T]) IndexFields(paths ...string) *KindBuilder[T] {
	for _, path := range paths {
		k.kind().IndexFields = append(k.kind().IndexFields, strings.TrimPrefix(path, "."))
	}
	return k
}

// IndexLabels is IndexFields for labels, which are named by their keys, and for label
// selectors, where sets such as app in (web, api) are asked for, too. Labels that lists select
// by are indexed without it, within bounds and from 1,000 objects on, but over etcd.
func (k *KindBuilder[T]) IndexLabels(keys ...string) *KindBuilder[T] {
	k.kind().IndexLabels = append(k.kind().IndexLabels, keys...)
	return k
}
