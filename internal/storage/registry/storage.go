package registry

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// Options are shared by all kinds of a server.
type Options struct {
	// Typer knows the types of the kinds; Convertor converts between their versions.
	Typer     runtime.ObjectTyper
	Convertor runtime.ObjectConvertor
	// Validator runs the generated validation of the versions. Nil means that they have none.
	Validator Validator
	// RESTOptions opens the storage of a resource.
	RESTOptions generic.RESTOptionsGetter
	// Opened returns the storage that RESTOptions has opened for a resource, for reading only. Nil if it is unknown.
	Opened func(schema.GroupResource) (storage.Interface, error)
	// UnconditionalUpdate accepts an update without a resource version.
	UnconditionalUpdate bool
	// Env is passed to the constructors of custom storages.
	Env any
	// Hooks are the admission hooks of all kinds.
	Hooks *admit.Hooks
	// Operations run long actions; nil if no kind has one.
	Operations define.Operations
	// GarbageCollected is set if a controller collects garbage by owner references. Then a deletion may wait for the
	// controller to remove the finalizers foregroundDeletion and orphan.
	GarbageCollected bool
	// Gates are the states of the feature gates, which all kinds share. Nil means those of FeatureGates.
	Gates map[string]bool
}

// Kind serves one kind. All its versions share one storage.
type Kind struct {
	Definition *define.Kind
	store      *genericregistry.Store
	status     *genericregistry.Store
	encoded    encodedReader           // nil if the storage is not an encodedReader
	own        map[string]rest.Storage // the storages of a kind with a custom storage; nil otherwise
	hooks      *admit.Hooks
	validator  Validator       // for custom subresources; nil if there is none
	options    map[string]bool // for the validator
	strategy   strategy
	operations define.Operations
	// managers record changes by custom subresources, by the version of the request. The map is empty before
	// ManageFields.
	managers map[*define.Version]fieldManagers
}

// NewKind opens the kind's storage. The server that the storage is installed in closes it.
func NewKind(k *define.Kind, options Options) (*Kind, error) {
	if k.CustomStorage != nil {
		return newSubresource(k, options)
	}
	main := newStrategy(k, options)
	table, err := tableOf(k, options.Convertor)
	if err != nil {
		return nil, err
	}
	store := &genericregistry.Store{
		NewFunc:                   k.Hub().New,
		NewListFunc:               k.Hub().NewList,
		PredicateFunc:             predicate(k),
		DefaultQualifiedResource:  k.GroupResource(),
		SingularQualifiedResource: singular(k),
		TableConvertor:            table,
		// A delete request that only starts a graceful deletion, or finds it started, returns the object. So does the
		// final delete of such an object, as with pods.
		ReturnDeletedObject: k.Grace != nil || k.ReturnsDeleted,
	}
	if seconds := uint64(k.TTL / time.Second); seconds > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	main.apply(store)
	storeOptions := &generic.StoreOptions{
		RESTOptions: options.RESTOptions,
		AttrFunc:    attributes(k),
		Indexers:    indexers(k),
		TriggerFunc: triggers(k),
	}
	if err := store.CompleteWithOptions(storeOptions); err != nil {
		return nil, fmt.Errorf("storage of %s: %w", k.GroupResource(), err)
	}
	store.EnableGarbageCollection = options.GarbageCollected && keepsFinalizers(k)
	kind := withStatus(k, store, main, options)
	if options.Opened != nil {
		if opened, err := options.Opened(k.GroupResource()); err == nil {
			kind.encoded, _ = opened.(encodedReader)
		}
	}
	return kind, nil
}

func withStatus(k *define.Kind, store *genericregistry.Store, main strategy, options Options) *Kind {
	kind := &Kind{
		Definition: k, store: store, hooks: options.Hooks,
		validator: options.Validator, options: main.options, strategy: main, operations: options.Operations,
	}
	if k.Status && k.Updatable() {
		status := *store
		status.UpdateStrategy = statusStrategy{main}
		status.ResetFieldsStrategy = statusStrategy{main}
		kind.status = &status
	}
	return kind
}

// keepsFinalizers returns false for kinds whose objects are in a system without a place for metadata.
func keepsFinalizers(k *define.Kind) bool {
	source := k.Primary().Source
	return source == nil || source.KeepsMetadata
}

func singular(k *define.Kind) schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Singular}
}

// Share serves the objects of a kind as another kind that shares them: from the same storage, in the versions and under
// the names of the other kind.
func (k *Kind) Share(other *define.Kind, options Options) *Kind {
	main := newStrategy(other, options)
	store := *k.store
	store.DefaultQualifiedResource, store.SingularQualifiedResource = other.GroupResource(), singular(other)
	main.apply(&store)
	kind := withStatus(other, &store, main, options)
	kind.encoded = k.encoded
	return kind
}

// Storage returns the storages to install for the first version of the kind, by path: the resource itself and its
// subresources.
func (k *Kind) Storage() map[string]rest.Storage { return k.StorageIn(k.Definition.Versions[0]) }

// StorageIn returns the storages to install for a version of the kind. They are the same for all versions, except for
// the types that custom subresources report as their results.
func (k *Kind) StorageIn(v *define.Version) map[string]rest.Storage {
	if k.own != nil {
		return k.own
	}
	resource := k.Definition.Resource
	storage := map[string]rest.Storage{resource: k.main()}
	if k.status != nil {
		storage[resource+"/status"] = &statusREST{store: k.status, dryRun: k.dryRunHooks()}
	}
	if k.Definition.Scale != nil {
		storage[resource+"/scale"] = &scaleREST{
			store:          k.store,
			kind:           k.Definition,
			dryRun:         k.dryRunHooks(),
			TableConvertor: newTable(scaleColumns(), true, true),
		}
	}
	for _, s := range k.Definition.CustomSubresources {
		storage[resource+"/"+s.Name] = k.subresource(s, v)
	}
	return storage
}

func (k *Kind) main() rest.Storage {
	main := &mainREST{Store: k.store, kind: k.Definition, dryRun: k.dryRunHooks(), encoded: k.encoded}
	if source := k.Definition.Primary().Source; source != nil {
		return withVerbs(main, source)
	}
	return main
}

// mainREST is a kind's main endpoint.
type mainREST struct {
	*genericregistry.Store
	kind   *define.Kind
	dryRun dryRunHooks
	// encoded is the storage below all layers that handle writes; nil if it cannot return stored bytes.
	encoded encodedReader
}

var (
	_ rest.StandardStorage      = (*mainREST)(nil)
	_ rest.ShortNamesProvider   = (*mainREST)(nil)
	_ rest.CategoriesProvider   = (*mainREST)(nil)
	_ rest.SingularNameProvider = (*mainREST)(nil)
	_ rest.Scoper               = (*mainREST)(nil)
	_ rest.StorageWithReadiness = (*mainREST)(nil)
	_ EncodedGetter             = (*mainREST)(nil)
	_ EncodedLister             = (*mainREST)(nil)
)

// GetEncoded implements EncodedGetter. It bypasses genericregistry.Store, which would allocate an object to read into.
func (r *mainREST) GetEncoded(ctx context.Context, name string, encoding *verbatim.Encoding) verbatim.Fragment {
	if r.encoded == nil {
		return verbatim.Fragment{}
	}
	key, err := r.KeyFunc(ctx, name)
	if err != nil {
		return verbatim.Fragment{} // a later read reports the error
	}
	return r.encoded.GetEncoded(ctx, key, encoding)
}

// ListEncoded implements EncodedLister. It returns no items for a list that carries a query.
func (r *mainREST) ListEncoded(
	ctx context.Context,
	options *metainternalversion.ListOptions,
	encoding *verbatim.Encoding,
	maker *verbatim.Maker,
) (runtime.Object, verbatim.Items, error) {
	if r.encoded == nil || ordered.IsQuery(ctx) {
		return nil, nil, nil
	}
	given := &EncodedItems{Encoding: encoding, Maker: maker}
	list, err := r.List(WithEncodedItems(ctx, given), options)
	return list, given.Items, err
}

// Update implements rest.Updater. If the client's own object cannot be converted, the error is a bad request.
func (r *mainREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	allowCreate bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	obj, created, err := r.Store.Update(
		ctx,
		name,
		info,
		r.dryRun.create(create, options.DryRun),
		r.dryRun.update(update, options.DryRun),
		allowCreate,
		options,
	)
	return obj, created, convert.BadRequest(err)
}

// Watch implements rest.Watcher. An invalid resource version is a bad request, as in a list.
func (r *mainREST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	w, err := r.Store.Watch(ctx, options)
	if err != nil && storage.IsInvalidError(err) {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return w, err
}

// NewList returns a list of the kind's group. The API machinery uses only its type, to name lists; the store makes the
// lists itself.
func (r *mainREST) NewList() runtime.Object { return r.kind.Versions[0].NewList() }

func (r *mainREST) ShortNames() []string  { return r.kind.ShortNames }
func (r *mainREST) Categories() []string  { return r.kind.Categories }
func (r *mainREST) NamespaceScoped() bool { return !r.kind.ClusterScoped }

// statusREST is the /status endpoint.
type statusREST struct {
	store  *genericregistry.Store
	dryRun dryRunHooks
}

var (
	_ rest.Getter              = (*statusREST)(nil)
	_ rest.Updater             = (*statusREST)(nil)
	_ rest.Patcher             = (*statusREST)(nil)
	_ rest.ResetFieldsStrategy = (*statusREST)(nil)
	_ rest.TableConvertor      = (*statusREST)(nil)
)

func (r *statusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the main endpoint destroys the storage.
func (r *statusREST) Destroy() {}

func (r *statusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater. It never creates an object: only the main endpoint does.
func (r *statusREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	obj, created, err := r.store.Update(ctx, name, info, create, r.dryRun.update(update, options.DryRun), false, options)
	return obj, created, convert.BadRequest(err)
}

func (r *statusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *statusREST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

func attributes(k *define.Kind) storage.AttrFunc {
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		m := objects.Meta(obj)
		set := fields.Set{"metadata.name": m.GetName()}
		if !k.ClusterScoped {
			set["metadata.namespace"] = m.GetNamespace()
		}
		for _, f := range k.Selectable {
			set[f.Path] = f.Value(obj)
		}
		return m.GetLabels(), set, nil
	}
}

func onlyLabels(obj runtime.Object) (labels.Set, fields.Set, error) {
	return objects.Meta(obj).GetLabels(), nil, nil
}

func predicate(k *define.Kind) func(labels.Selector, fields.Selector) storage.SelectionPredicate {
	all := attributes(k)
	return func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
		attrs := all
		if field == nil || field.Empty() {
			// Otherwise, building an unused map of fields would be most of the work of a list by label.
			attrs = onlyLabels
		}
		return storage.SelectionPredicate{
			Label: label, Field: field, GetAttrs: attrs,
			IndexLabels: k.IndexLabels, IndexFields: k.IndexFields,
		}
	}
}

// topFields returns the JSON names of a type's own top-level fields, without type, metadata and status.
func topFields(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct && name == "":
			names = append(names, topFields(f.Type)...)
		case !slices.Contains([]string{"", "-", "apiVersion", "kind", "metadata", "status"}, name):
			names = append(names, name)
		}
	}
	return names
}
