package rights

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/storage/registry"
)

// Keeper maintains the roles and bindings of one server.
type Keeper struct {
	policy     *rbac.Policy
	definition *define.Server
	informers  []*informer.Informer
	// clusterRoles is the informer for aggregation; it is also in informers.
	clusterRoles *informer.Informer
	// storage is by resource. It is set before the first request.
	storage map[string]registry.Editable
	// changed has room for one signal that ClusterRoles have changed.
	changed chan struct{}
	// bootstrapped is closed at the end of Bootstrap. Until then roles are not aggregated, since some of the selected
	// roles may be missing.
	bootstrapped chan struct{}

	mu sync.Mutex
	// expected are the changes that Bootstrap waits for, by identity.
	expected map[string][]chan struct{}
}

// NewKeeper returns the keeper of a server that has the kinds of Group. The informers of set update the policy.
func NewKeeper(definition *define.Server, set *informer.Set, policy *rbac.Policy) (*Keeper, error) {
	k := &Keeper{
		policy:       policy,
		definition:   definition,
		storage:      map[string]registry.Editable{},
		changed:      make(chan struct{}, 1),
		bootstrapped: make(chan struct{}),
		expected:     map[string][]chan struct{}{},
	}
	for _, kind := range definition.Kinds() {
		if kind.Group != rbacv1.GroupName {
			continue
		}
		i, err := set.For(kind, kind.Hub())
		if err != nil {
			return nil, err
		}
		i.OnChange(k.following(k.set), k.following(k.remove))
		k.informers = append(k.informers, i)
		if kind.Resource == "clusterroles" {
			k.clusterRoles = i
		}
	}
	return k, nil
}

// Bootstrapped returns a channel that is closed when Bootstrap has created all objects.
func (k *Keeper) Bootstrapped() <-chan struct{} { return k.bootstrapped }

// StoreIn sets the storage of a resource.
func (k *Keeper) StoreIn(resource string, storage registry.Editable) { k.storage[resource] = storage }

// following returns a handler that updates the policy by the given function, and then notifies Bootstrap.
func (k *Keeper) following(tell func(runtime.Object)) func(runtime.Object) {
	return func(obj runtime.Object) {
		tell(obj)
		k.observe(obj)
	}
}

func (k *Keeper) set(obj runtime.Object) {
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		k.policy.SetRole("", o.Name, o.Rules)
		k.signal()
	case *rbacv1.Role:
		k.policy.SetRole(o.Namespace, o.Name, o.Rules)
	case *rbacv1.ClusterRoleBinding:
		k.policy.SetBinding("", o.Name, o.RoleRef, o.Subjects)
	case *rbacv1.RoleBinding:
		k.policy.SetBinding(o.Namespace, o.Name, o.RoleRef, o.Subjects)
	}
}

func (k *Keeper) remove(obj runtime.Object) {
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		k.policy.DeleteRole("", o.Name)
		k.signal()
	case *rbacv1.Role:
		k.policy.DeleteRole(o.Namespace, o.Name)
	case *rbacv1.ClusterRoleBinding:
		k.policy.DeleteBinding("", o.Name)
	case *rbacv1.RoleBinding:
		k.policy.DeleteBinding(o.Namespace, o.Name)
	}
}

func (k *Keeper) signal() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// rulesOf reads the rules of the role that a binding in a namespace refers to.
func (k *Keeper) rulesOf(ctx context.Context, namespace string, ref rbacv1.RoleRef) ([]rbacv1.PolicyRule, error) {
	resource := "clusterroles"
	if ref.Kind == "Role" {
		resource = "roles"
	} else {
		namespace = ""
	}
	// Errors contain the resource of the request info, which is that of the binding in ctx.
	ctx = request.WithRequestInfo(request.WithNamespace(ctx, namespace), &request.RequestInfo{APIGroup: rbacv1.GroupName, Resource: resource})
	obj, err := k.storage[resource].Get(ctx, ref.Name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	switch role := obj.(type) {
	case *rbacv1.Role:
		return role.Rules, nil
	case *rbacv1.ClusterRole:
		return role.Rules, nil
	}
	return nil, fmt.Errorf("%s %q is a %T", resource, ref.Name, obj)
}

// Run keeps aggregated roles up to date after Bootstrap, until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-k.bootstrapped:
	}
	backoff := retry()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.changed:
		}
		err := k.aggregate(ctx)
		switch {
		case err == nil:
			backoff = retry()
			continue
		case ctx.Err() != nil:
			return nil
		}
		klog.FromContext(ctx).Error(err, "Aggregated roles are not up to date, trying again")
		if await.Sleep(ctx, clock.RealClock{}, backoff()) {
			k.signal()
		}
	}
}

func retry() wait.DelayFunc {
	return wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 12, Cap: 10 * time.Second}.DelayFunc()
}

// aggregate updates the aggregated roles whose rules differ from those of the selected roles.
func (k *Keeper) aggregate(ctx context.Context) error {
	var all []*rbacv1.ClusterRole
	k.clusterRoles.List("", labels.Everything(), func(obj runtime.Object) { all = append(all, obj.(*rbacv1.ClusterRole)) })
	settled, err := rbac.AggregateAll(all)
	errs := []error{err}
	for _, role := range all {
		rules, ok := settled[role.Name]
		if !ok || apiequality.Semantic.DeepEqual(rules, role.Rules) {
			continue
		}
		changed := role.DeepCopy()
		changed.Rules = rules
		_, err := k.write(ctx, "clusterroles", changed)
		// After a conflict the cache is stale; its next event triggers another aggregation.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("aggregate %s: %w", role.Name, err))
		}
	}
	return errors.Join(errs...)
}

// own returns the context of the server's own writes.
func own(ctx context.Context, namespace string) context.Context {
	ctx = request.WithNamespace(ctx, namespace)
	return request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// write creates the object, or updates it if it has a resource version. It reports whether the stored object has
// changed.
func (k *Keeper) write(ctx context.Context, resource string, obj runtime.Object) (changed bool, err error) {
	m := obj.(metav1.Object)
	ctx = own(ctx, m.GetNamespace())
	before := m.GetResourceVersion()
	if before == "" {
		_, err := k.storage[resource].Create(ctx, obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		return err == nil, err
	}
	after, _, err := k.storage[resource].Update(
		ctx,
		m.GetName(),
		rest.DefaultUpdatedObjectInfo(obj),
		rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc,
		false,
		&metav1.UpdateOptions{},
	)
	if err != nil {
		return false, err
	}
	return after.(metav1.Object).GetResourceVersion() != before, nil
}
