package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/model/define"
)

// atOnce is the number of bootstrap objects that are written concurrently, so that they share syncs.
const atOnce = 64

// Bootstrap creates the roles and bindings that every server has, which are those of a kube-apiserver without the
// ones for parts of a cluster that this server does not have, and the roles that the definition's kinds declare. It
// returns nil when they exist and the policy has been updated with all roles and bindings. Failures are logged and
// retried until ctx is done; Bootstrap then returns the last error. It must be called once.
func (k *Keeper) Bootstrap(ctx context.Context) error {
	for _, i := range k.informers {
		if err := i.WaitForSync(ctx); err != nil {
			return fmt.Errorf("read %s: %w", i.Resource(), err)
		}
	}
	wanted, err := k.bootstrapObjects()
	if err != nil {
		return fmt.Errorf("bootstrap roles: %w", err)
	}
	backoff := retry()
	for {
		err := k.ensureAll(ctx, wanted)
		if err == nil {
			close(k.bootstrapped)
			return nil
		}
		if !await.Sleep(ctx, clock.RealClock{}, backoff()) {
			return err
		}
		klog.FromContext(ctx).Error(err, "Bootstrap roles are missing, trying again")
	}
}

// bootstrapNames are the ClusterRoles, and the ClusterRoleBindings of the same names, that every server has. The
// roles of a server's own controllers are added to them. The other roles of a kube-apiserver are for nodes,
// schedulers and controllers of a cluster. They are omitted because they would only distract people who read the
// roles, or the files in which they are stored. A control plane with the kinds of a cluster adds them by Plane.Roles:
// there, charts of schedulers and drivers bind to them by name.
var bootstrapNames = []string{
	"admin", "cluster-admin", "edit", "view",
	"system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
	"system:auth-delegator", "system:basic-user", "system:discovery", "system:monitoring",
	"system:public-info-viewer", "system:service-account-issuer-discovery",
}

// authenticationReader is the Role that lets servers behind a control plane read its authentication configuration.
const authenticationReader = "extension-apiserver-authentication-reader"

func bootstrapOfServer(definition *define.Server) *rbac.BootstrapObjects {
	all := rbac.Bootstrap()
	bootstrapNames := slices.Clone(bootstrapNames)
	if definition.Plane != nil {
		bootstrapNames = append(bootstrapNames, user.KubeControllerManager)
		for _, c := range definition.Plane.Controllers {
			bootstrapNames = append(bootstrapNames, "system:controller:"+c.Account)
		}
	}
	own := &rbac.BootstrapObjects{
		ClusterRoles: slices.DeleteFunc(all.ClusterRoles, func(r rbacv1.ClusterRole) bool { return !slices.Contains(bootstrapNames, r.Name) }),
		ClusterRoleBindings: slices.DeleteFunc(all.ClusterRoleBindings, func(b rbacv1.ClusterRoleBinding) bool {
			return !slices.Contains(bootstrapNames, b.Name)
		}),
		Roles: slices.DeleteFunc(all.Roles, func(r rbacv1.Role) bool { return r.Name != authenticationReader }),
	}
	if definition.Plane != nil && definition.Plane.Roles != nil {
		addRoles(own, definition.Plane.Roles())
	}
	return own
}

// addRoles adds the objects whose names are not taken. A ClusterRole of a taken name adds the rules that the other lacks,
// which may depend on feature gates, so that roles that are aggregated from it lack none.
func addRoles(to *rbac.BootstrapObjects, more []runtime.Object) {
	for _, obj := range more {
		switch o := obj.(type) {
		case *rbacv1.ClusterRole:
			i := slices.IndexFunc(to.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == o.Name })
			if i < 0 {
				to.ClusterRoles = append(to.ClusterRoles, *o)
			} else if merged, operation := rbac.ReconcileClusterRole(&to.ClusterRoles[i], o); operation != rbac.Keep {
				to.ClusterRoles[i] = *merged
			}
		case *rbacv1.ClusterRoleBinding:
			if !slices.ContainsFunc(to.ClusterRoleBindings, func(b rbacv1.ClusterRoleBinding) bool { return b.Name == o.Name }) {
				to.ClusterRoleBindings = append(to.ClusterRoleBindings, *o)
			}
		case *rbacv1.Role:
			if !slices.ContainsFunc(to.Roles, func(r rbacv1.Role) bool { return r.Namespace == o.Namespace && r.Name == o.Name }) {
				to.Roles = append(to.Roles, *o)
			}
		case *rbacv1.RoleBinding:
			if !slices.ContainsFunc(to.RoleBindings, func(b rbacv1.RoleBinding) bool {
				return b.Namespace == o.Namespace && b.Name == o.Name
			}) {
				to.RoleBindings = append(to.RoleBindings, *o)
			}
		}
	}
}

// bootstrapObject is an object that has to exist at the start. reconcile returns the object to write, given the
// existing one, which may be nil.
type bootstrapObject struct {
	resource, namespace, name string
	reconcile                 func(existing runtime.Object) (runtime.Object, rbac.Operation)
}

func (k *Keeper) bootstrapObjects() ([]bootstrapObject, error) {
	bootstrap := bootstrapOfServer(k.definition)
	own := granted(k.definition)
	// Aggregate the roles before they are created, so that a new server does not become ready with roles that allow
	// nothing.
	roles := slices.Clone(own)
	for i := range bootstrap.ClusterRoles {
		roles = append(roles, &bootstrap.ClusterRoles[i])
	}
	settled, err := rbac.AggregateAll(roles)
	if err != nil {
		return nil, err
	}
	var all []bootstrapObject
	for i := range bootstrap.ClusterRoles {
		role := &bootstrap.ClusterRoles[i]
		first := role.DeepCopy()
		if aggregates(role) {
			first.Rules = settled[role.Name]
		}
		all = append(all, bootstrapObject{"clusterroles", "", role.Name, func(existing runtime.Object) (runtime.Object, rbac.Operation) {
			if existing == nil {
				return first.DeepCopy(), rbac.Create
			}
			return rbac.ReconcileClusterRole(existing.(*rbacv1.ClusterRole), role)
		}})
	}
	for _, role := range own {
		all = append(all, bootstrapObject{"clusterroles", "", role.Name, func(existing runtime.Object) (runtime.Object, rbac.Operation) {
			if existing == nil {
				return role.DeepCopy(), rbac.Create
			}
			return replaceGranted(existing.(*rbacv1.ClusterRole), role)
		}})
	}
	for i := range bootstrap.ClusterRoleBindings {
		binding := &bootstrap.ClusterRoleBindings[i]
		all = append(
			all,
			bootstrapObject{"clusterrolebindings", "", binding.Name, func(existing runtime.Object) (runtime.Object, rbac.Operation) {
				if existing == nil {
					return binding.DeepCopy(), rbac.Create
				}
				return rbac.ReconcileClusterRoleBinding(existing.(*rbacv1.ClusterRoleBinding), binding)
			}},
		)
	}
	for i := range bootstrap.Roles {
		role := &bootstrap.Roles[i]
		if k.definition.Plane == nil {
			break // no server is behind this one, and the namespace may not exist
		}
		all = append(all, bootstrapObject{"roles", role.Namespace, role.Name, func(existing runtime.Object) (runtime.Object, rbac.Operation) {
			found, _ := existing.(*rbacv1.Role)
			return rbac.ReconcileRole(found, role)
		}})
	}
	for i := range bootstrap.RoleBindings {
		binding := &bootstrap.RoleBindings[i]
		all = append(
			all,
			bootstrapObject{"rolebindings", binding.Namespace, binding.Name, func(existing runtime.Object) (runtime.Object, rbac.Operation) {
				found, _ := existing.(*rbacv1.RoleBinding)
				return rbac.ReconcileRoleBinding(found, binding)
			}},
		)
	}
	return all, nil
}

// replaceGranted updates a role from the definition, which alone determines its rules: rules that a kind no longer
// grants are removed.
func replaceGranted(existing, wanted *rbacv1.ClusterRole) (runtime.Object, rbac.Operation) {
	if existing.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false" {
		return nil, rbac.Keep
	}
	role := existing.DeepCopy()
	role.Rules = wanted.Rules
	for key, value := range wanted.Labels {
		metav1.SetMetaDataLabel(&role.ObjectMeta, key, value)
	}
	if apiequality.Semantic.DeepEqual(role, existing) {
		return nil, rbac.Keep
	}
	return role, rbac.Update
}

// ensureAll writes missing objects, and waits until the policy has been updated.
func (k *Keeper) ensureAll(ctx context.Context, wanted []bootstrapObject) error {
	var running sync.WaitGroup
	errs := make([]error, len(wanted))
	slots := make(chan struct{}, atOnce)
	for i, object := range wanted {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := k.ensure(ctx, object); err != nil {
				errs[i] = fmt.Errorf("%s %s: %w", object.resource, object.name, err)
			}
		})
	}
	running.Wait()
	return errors.Join(append(errs, k.takeBack(ctx, wanted))...)
}

// takeBack deletes roles that kinds have declared earlier and no longer declare.
func (k *Keeper) takeBack(ctx context.Context, wanted []bootstrapObject) error {
	ctx = own(ctx, "")
	var errs []error
	k.clusterRoles.List("", labels.SelectorFromSet(labels.Set{bootstrapping: declared}), func(obj runtime.Object) {
		role := obj.(*rbacv1.ClusterRole)
		if role.Annotations[rbacv1.AutoUpdateAnnotationKey] == "false" || slices.ContainsFunc(wanted, func(o bootstrapObject) bool {
			return o.resource == "clusterroles" && o.name == role.Name
		}) {
			return
		}
		_, _, err := k.storage["clusterroles"].Delete(ctx, role.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("take back the role %s: %w", role.Name, err))
		}
	})
	return errors.Join(errs...)
}

// expect returns a channel that is closed after the policy has been updated with the next change of an object.
func (k *Keeper) expect(obj runtime.Object) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, id := make(chan struct{}), identity(obj)
	k.expected[id] = append(k.expected[id], seen)
	return seen
}

func (k *Keeper) observe(obj runtime.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := identity(obj)
	for _, seen := range k.expected[id] {
		close(seen)
	}
	delete(k.expected, id)
}

func identity(obj runtime.Object) string {
	m := obj.(metav1.Object)
	return fmt.Sprintf("%T %s/%s", obj, m.GetNamespace(), m.GetName())
}

func (k *Keeper) ensure(ctx context.Context, object bootstrapObject) error {
	ctx = own(ctx, object.namespace)
	storage := k.storage[object.resource]
	existing, err := storage.Get(ctx, object.name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		existing = nil
	case err != nil:
		return err
	}
	obj, operation := object.reconcile(existing)
	switch operation {
	case rbac.Keep:
		return nil
	case rbac.Recreate:
		if _, _, err := storage.Delete(
			ctx,
			object.name,
			rest.ValidateAllObjectFunc,
			&metav1.DeleteOptions{},
		); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
	}
	seen := k.expect(obj)
	changed, err := k.write(ctx, object.resource, obj)
	if err != nil || !changed {
		return err
	}
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
