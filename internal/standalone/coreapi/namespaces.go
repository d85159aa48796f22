package coreapi

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/store"
)

// Resource is the resource of namespaces in storage and in errors.
var Resource = corev1.Resource("namespaces")

// Namespaces serves the namespaces of one server and guards creates in them.
type Namespaces struct {
	main, status, finalize *genericregistry.Store
	inFlight               inFlight
	system                 []string
	// dependent is nil unless creates can depend on namespaces: see Guard.
	dependent store.DependentWriter
	// checkedLate has the resources, as schema.GroupResource, whose creates check the namespace in the write.
	checkedLate sync.Map
}

// SystemNamespaces returns the initial namespaces of kube-apiserver beside default: for the cluster's own parts, for
// objects that all callers may read, and for the heartbeats of nodes.
func SystemNamespaces() []string {
	return []string{corev1.NamespaceNodeLease, metav1.NamespacePublic, metav1.NamespaceSystem}
}

// Permanent reports whether a namespace cannot be deleted. kube-node-lease can be deleted, as in a cluster.
func (n *Namespaces) Permanent(name string) bool {
	return name == metav1.NamespaceDefault || name != corev1.NamespaceNodeLease && slices.Contains(n.system, name)
}

// Config configures the namespaces of a server.
type Config struct {
	// Typer contains the types of this package.
	Typer   runtime.ObjectTyper
	Storage generic.RESTOptionsGetter
	// System are initial namespaces in addition to default.
	System []string
	// GarbageCollected means that a garbage collector removes the finalizers that select what happens to the
	// dependents of a namespace.
	GarbageCollected bool
}

// NewNamespaces opens the storage of namespaces. The server in which it is installed closes it.
func NewNamespaces(config Config) (*Namespaces, error) {
	s := strategy{ObjectTyper: config.Typer, NameGenerator: names.SimpleNameGenerator}
	main := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &corev1.Namespace{} },
		NewListFunc:               func() runtime.Object { return &corev1.NamespaceList{} },
		PredicateFunc:             predicate,
		DefaultQualifiedResource:  Resource,
		SingularQualifiedResource: corev1.Resource("namespace"),
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		ResetFieldsStrategy:       s,
		ReturnDeletedObject:       true,
		ShouldDeleteDuringUpdate:  isFinalized,
		TableConvertor:            table{},
	}
	if err := main.CompleteWithOptions(&generic.StoreOptions{RESTOptions: config.Storage, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("storage of namespaces: %w", err)
	}
	main.EnableGarbageCollection = config.GarbageCollected
	status, finalize := *main, *main
	status.UpdateStrategy, status.ResetFieldsStrategy = statusStrategy{s}, statusStrategy{s}
	finalize.UpdateStrategy, finalize.ResetFieldsStrategy = finalizeStrategy{s}, finalizeStrategy{s}
	return &Namespaces{
		main: main, status: &status, finalize: &finalize, system: config.System, dependent: store.DependentOf(main.Storage.Storage),
	}, nil
}

// Storage returns the endpoints of version v1 of the core group, by path.
func (n *Namespaces) Storage() map[string]rest.Storage {
	return map[string]rest.Storage{
		"namespaces":          &mainREST{store: n.main},
		"namespaces/status":   &statusREST{updateREST{n.status}},
		"namespaces/finalize": &updateREST{n.finalize},
	}
}

// Names returns the names of all namespaces.
func (n *Namespaces) Names(ctx context.Context) ([]string, error) {
	list, err := n.main.List(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var all []string
	for i := range list.(*corev1.NamespaceList).Items {
		all = append(all, list.(*corev1.NamespaceList).Items[i].Name)
	}
	return all, nil
}

// get reads the current namespace, without a cache. The error is nil, a NotFound with kube-apiserver's message, or
// one of the storage.
func (n *Namespaces) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	key, err := n.main.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	ns := &corev1.Namespace{}
	if err := n.main.Storage.Get(ctx, key, storage.GetOptions{}, ns); err != nil {
		return nil, storageerrors.InterpretGetError(err, Resource, name)
	}
	return ns, nil
}

// see returns the state of a namespace that a cache has seen and that was not being deleted; false if there is none. A
// create may depend on it.
func (n *Namespaces) see(ctx context.Context, name string) (store.Seen, bool) {
	key, err := n.main.KeyFunc(ctx, name)
	if err != nil {
		return store.Seen{}, false
	}
	ns := &corev1.Namespace{}
	seen, err := n.dependent.See(ctx, key, ns)
	return seen, err == nil && !isTerminating(ns)
}

// isFinalized reports whether an update that removes the last finalizer of the metadata may remove the namespace. It
// must not while the spec still has finalizers.
func isFinalized(_ context.Context, _ string, obj, _ runtime.Object) bool {
	return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0
}

func isTerminating(ns *corev1.Namespace) bool {
	return ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating
}

// mainREST is the main endpoint. It does not embed the store, because a collection of namespaces cannot be deleted,
// as in kube-apiserver.
type mainREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Scoper                 = (*mainREST)(nil)
	_ rest.SingularNameProvider   = (*mainREST)(nil)
	_ rest.ShortNamesProvider     = (*mainREST)(nil)
	_ rest.Creater                = (*mainREST)(nil)
	_ rest.Lister                 = (*mainREST)(nil)
	_ rest.Watcher                = (*mainREST)(nil)
	_ rest.Patcher                = (*mainREST)(nil)
	_ rest.GracefulDeleter        = (*mainREST)(nil)
	_ rest.ResetFieldsStrategy    = (*mainREST)(nil)
	_ rest.StorageVersionProvider = (*mainREST)(nil)
	_ rest.StorageWithReadiness   = (*mainREST)(nil)
	_ rest.Patcher                = (*statusREST)(nil)
	_ rest.Updater                = (*updateREST)(nil)
	_ rest.ResetFieldsStrategy    = (*updateREST)(nil)
)

func (r *mainREST) New() runtime.Object                    { return r.store.New() }
func (r *mainREST) NewList() runtime.Object                { return r.store.NewList() }
func (r *mainREST) Destroy()                               { r.store.Destroy() }
func (r *mainREST) NamespaceScoped() bool                  { return false }
func (r *mainREST) GetSingularName() string                { return r.store.GetSingularName() }
func (r *mainREST) ShortNames() []string                   { return []string{"ns"} }
func (r *mainREST) StorageVersion() runtime.GroupVersioner { return r.store.StorageVersion() }
func (r *mainREST) ReadinessCheck() error                  { return r.store.ReadinessCheck() }

func (r *mainREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *mainREST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

func (r *mainREST) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	return r.store.Create(ctx, obj, validate, options)
}

func (r *mainREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

func (r *mainREST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.store.List(ctx, options)
}

func (r *mainREST) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return r.store.Watch(ctx, options)
}

func (r *mainREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	forceAllowCreate bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, forceAllowCreate, options)
}

// Delete makes the namespace Terminating. The namespace is removed with its last finalizer; Delete itself removes it
// only if there is none.
func (r *mainREST) Delete(
	ctx context.Context,
	name string,
	validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	obj, err := r.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		// Further steps apply to this namespace only, not to a new one with the same name.
		options.Preconditions.UID = &ns.UID
	}
	preconditions := &storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	if err := preconditions.Check(name, ns); err != nil {
		return nil, false, storageerrors.InterpretDeleteError(err, Resource, name)
	}

	switch {
	case ns.DeletionTimestamp == nil:
		terminating, err := r.terminate(ctx, name, preconditions, validate, options)
		return terminating, false, err
	case len(ns.Spec.Finalizers) > 0:
		return ns, false, nil
	default:
		return r.store.Delete(ctx, name, validate, options)
	}
}

func (r *mainREST) terminate(
	ctx context.Context,
	name string,
	preconditions *storage.Preconditions,
	validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions,
) (runtime.Object, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &corev1.Namespace{}
	err = r.store.Storage.GuaranteedUpdate(
		ctx,
		key,
		out,
		false,
		preconditions,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			if err := validate(ctx, obj); err != nil {
				return nil, err
			}
			ns := obj.(*corev1.Namespace)
			if ns.DeletionTimestamp == nil {
				now := metav1.Now()
				ns.DeletionTimestamp = &now
			}
			ns.Status.Phase = corev1.NamespaceTerminating
			if r.store.EnableGarbageCollection {
				ns.Finalizers = finalizersOf(ns, options)
			}
			return ns, nil
		}),
		dryrun.IsDryRun(options.DryRun),
		nil,
	)
	if storage.IsNotFound(err) {
		return nil, apierrors.NewNotFound(Resource, name)
	}
	if err != nil {
		return nil, storageerrors.InterpretUpdateError(err, Resource, name)
	}
	return out, nil
}

// finalizersOf returns the finalizers of a namespace to delete: its own, and the finalizer by which the garbage collector
// orphans or deletes the dependents. If the options contain no policy, its finalizers are unchanged. That
// orphanDependents=false means foreground deletion is peculiar to kube-apiserver's namespaces.
func finalizersOf(ns *corev1.Namespace, options *metav1.DeleteOptions) []string {
	var told string
	//lint:ignore SA1019 clients may still send it
	orphan := options.OrphanDependents
	switch policy := options.PropagationPolicy; {
	case orphan != nil && *orphan, orphan == nil && policy != nil && *policy == metav1.DeletePropagationOrphan:
		told = metav1.FinalizerOrphanDependents
	case orphan != nil, policy != nil && *policy == metav1.DeletePropagationForeground:
		told = metav1.FinalizerDeleteDependents
	case policy == nil:
		return ns.Finalizers
	}
	var kept []string
	for _, f := range ns.Finalizers {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			kept = append(kept, f)
		}
	}
	if told != "" {
		kept = append(kept, told)
	}
	return kept
}

// updateREST is an endpoint with updates only. It never creates a namespace.
type updateREST struct {
	store *genericregistry.Store
}

func (r *updateREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the storage belongs to the main endpoint.
func (r *updateREST) Destroy() {}

func (r *updateREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

func (r *updateREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

func (r *updateREST) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

// statusREST can be read and patched as well.
type statusREST struct {
	updateREST
}

func (r *statusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// table prints namespaces as kubectl get shows them.
type table struct{}

// Table returns the convertor of namespaces to tables.
func Table() rest.TableConvertor { return table{} }

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	{Name: "Status", Type: "string", Description: "The status of the namespace"},
	{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
}

func (table) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		out.ColumnDefinitions = columns
	}
	if list, err := meta.ListAccessor(object); err == nil {
		out.ResourceVersion = list.GetResourceVersion()
		out.Continue = list.GetContinue()
		out.RemainingItemCount = list.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
	var err error
	out.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		ns, ok := obj.(*corev1.Namespace)
		if !ok {
			return nil, fmt.Errorf("print namespaces: %T is none", obj)
		}
		return []any{name, string(ns.Status.Phase), age}, nil
	})
	return out, err
}
