package rbac

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const (
	kindRole        = "Role"
	kindClusterRole = "ClusterRole"
)

// maxMissing is the maximum number of missing roles that a refusal names.
const maxMissing = 10

// Policy is a set of roles and bindings. A new Policy allows nothing. Its methods may be called concurrently, and
// authorizations do not wait for each other. Roles and bindings may be set in any order: a binding grants nothing
// until its role exists.
//
// A Policy keeps the rules and subjects that are passed to it; the caller must not modify them afterwards. They may
// belong to a shared cache.
type Policy struct {
	mu    sync.RWMutex
	rules *index

	roles map[roleKey]*role
	byID  []*role  // nil for an unused ID
	free  []uint32 // unused IDs
	// absent are the referenced roles that do not exist.
	absent set

	bindings map[bindingKey]*binding
	// subjects are the subjects of the bindings in each namespace; the empty namespace has those of
	// ClusterRoleBindings.
	subjects map[string]map[subject]*grants
}

var (
	_ authorizer.Authorizer   = (*Policy)(nil)
	_ authorizer.RuleResolver = (*Policy)(nil)
)

type roleKey struct{ kind, namespace, name string }

// role is a role that exists or has bindings.
type role struct {
	roleKey
	id       uint32
	exists   bool
	rules    []rbacv1.PolicyRule
	broad    []*broadRule // rules that the index does not expand
	bindings int
}

// bindingKey has an empty namespace for a ClusterRoleBinding.
type bindingKey struct{ namespace, name string }

type binding struct {
	bindingKey
	ref      rbacv1.RoleRef
	subjects []rbacv1.Subject
	role     *role
}

// subject is a group or a user; service accounts are users.
type subject struct {
	group bool
	name  string
}

// grants are the roles of a subject.
type grants struct {
	roles set
	bound []boundSubject // by role, then by name of the binding
}

// boundSubject is a binding and the index of one of its subjects.
type boundSubject struct {
	binding *binding
	subject int
}

// NewPolicy returns a policy that allows nothing.
func NewPolicy() *Policy {
	return &Policy{
		rules: newIndex(), roles: map[roleKey]*role{}, bindings: map[bindingKey]*binding{}, subjects: map[string]map[subject]*grants{},
	}
}

// SetRole sets the rules of a Role, or of a ClusterRole if the namespace is empty.
func (p *Policy) SetRole(namespace, name string, rules []rbacv1.PolicyRule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.role(keyOfRole(namespace, name))
	p.rules.remove(r.id, r.rules, r.broad)
	r.exists, r.rules = true, rules
	r.broad = p.rules.add(r.id, rules)
	p.absent.remove(r.id)
}

// DeleteRole removes a Role, or a ClusterRole if the namespace is empty. Its bindings stay.
func (p *Policy) DeleteRole(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.roles[keyOfRole(namespace, name)]
	if r == nil || !r.exists {
		return
	}
	p.rules.remove(r.id, r.rules, r.broad)
	r.exists, r.rules, r.broad = false, nil, nil
	p.absent.add(r.id)
	p.forget(r)
}

func keyOfRole(namespace, name string) roleKey {
	if namespace == "" {
		return roleKey{kindClusterRole, "", name}
	}
	return roleKey{kindRole, namespace, name}
}

func (p *Policy) role(key roleKey) *role {
	if r := p.roles[key]; r != nil {
		return r
	}
	r := &role{roleKey: key}
	if last := len(p.free) - 1; last >= 0 {
		r.id, p.free = p.free[last], p.free[:last]
		p.byID[r.id] = r
	} else {
		r.id = uint32(len(p.byID))
		p.byID = append(p.byID, r)
	}
	p.roles[key] = r
	p.absent.add(r.id)
	return r
}

// forget drops a role that does not exist and has no bindings.
func (p *Policy) forget(r *role) {
	if r.exists || r.bindings > 0 {
		return
	}
	delete(p.roles, r.roleKey)
	p.absent.remove(r.id)
	p.byID[r.id] = nil
	p.free = append(p.free, r.id)
}

// SetBinding sets the role and the subjects of a RoleBinding, or of a ClusterRoleBinding if the namespace is empty.
func (p *Policy) SetBinding(namespace, name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &binding{bindingKey{namespace, name}, ref, subjects, p.role(keyOfRef(namespace, ref))}
	b.role.bindings++
	if old := p.bindings[b.bindingKey]; old != nil {
		p.unbind(old)
	}
	p.bindings[b.bindingKey] = b
	for i := range subjects {
		if key, ok := keyOfSubject(namespace, &subjects[i]); ok {
			p.bind(key, boundSubject{b, i})
		}
	}
}

func (p *Policy) bind(to subject, b boundSubject) {
	in := p.subjects[b.binding.namespace]
	if in == nil {
		in = map[subject]*grants{}
		p.subjects[b.binding.namespace] = in
	}
	g := in[to]
	if g == nil {
		g = &grants{}
		in[to] = g
	}
	g.add(b)
}

// DeleteBinding removes a RoleBinding, or a ClusterRoleBinding if the namespace is empty.
func (p *Policy) DeleteBinding(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.bindings[bindingKey{namespace, name}]; b != nil {
		p.unbind(b)
	}
}

func (p *Policy) unbind(b *binding) {
	delete(p.bindings, b.bindingKey)
	in := p.subjects[b.namespace]
	for i := range b.subjects {
		key, _ := keyOfSubject(b.namespace, &b.subjects[i])
		if g := in[key]; g != nil {
			if g.remove(b); len(g.bound) == 0 {
				delete(in, key)
			}
		}
	}
	if len(in) == 0 {
		delete(p.subjects, b.namespace)
	}
	b.role.bindings--
	p.forget(b.role)
}

// keyOfRef returns the key of the role that a binding in a namespace refers to. No role has an unknown kind, and no
// Role has an empty namespace, so such a binding never finds a role.
func keyOfRef(namespace string, ref rbacv1.RoleRef) roleKey {
	if ref.Kind != kindRole {
		namespace = ""
	}
	return roleKey{ref.Kind, namespace, ref.Name}
}

// keyOfSubject reports false if the subject cannot match a caller.
func keyOfSubject(namespace string, s *rbacv1.Subject) (subject, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{false, s.Name}, true
	case rbacv1.GroupKind:
		return subject{true, s.Name}, true
	case rbacv1.ServiceAccountKind:
		if of := cmp.Or(s.Namespace, namespace); of != "" {
			return subject{false, serviceaccount.MakeUsername(of, s.Name)}, true
		}
	}
	return subject{}, false
}

func compareBound(a, b boundSubject) int {
	return cmp.Or(cmp.Compare(a.binding.role.id, b.binding.role.id), strings.Compare(a.binding.name, b.binding.name))
}

// add ignores a binding that is already present because of an earlier subject.
func (g *grants) add(b boundSubject) {
	if i, ok := slices.BinarySearchFunc(g.bound, b, compareBound); !ok {
		g.bound = slices.Insert(g.bound, i, b)
		g.roles.add(b.binding.role.id)
	}
}

func (g *grants) remove(b *binding) {
	i, ok := slices.BinarySearchFunc(g.bound, boundSubject{binding: b}, compareBound)
	if !ok {
		return
	}
	g.bound = slices.Delete(g.bound, i, i+1)
	if _, left := g.by(b.role.id); !left {
		g.roles.remove(b.role.id)
	}
}

// by returns the first binding of a role.
func (g *grants) by(role uint32) (boundSubject, bool) {
	i, _ := slices.BinarySearchFunc(g.bound, role, func(b boundSubject, role uint32) int {
		if b.binding.role.id < role {
			return -1
		}
		return 1 // never equal, to find the first binding of the role
	})
	if i == len(g.bound) || g.bound[i].binding.role.id != role {
		return boundSubject{}, false
	}
	return g.bound[i], true
}

// of appends the grants of a caller in the namespace; an empty namespace means ClusterRoleBindings.
func (p *Policy) of(u user.Info, namespace string, all []*grants) []*grants {
	in := p.subjects[namespace]
	if in == nil {
		return all
	}
	if g := in[subject{false, u.GetName()}]; g != nil {
		all = append(all, g)
	}
	for _, group := range u.GetGroups() {
		if g := in[subject{true, group}]; g != nil {
			all = append(all, g)
		}
	}
	return all
}

// scopes returns the namespaces whose bindings apply in a namespace, starting with ClusterRoleBindings.
func scopes(namespace string) []string {
	if namespace == "" {
		return []string{""}
	}
	return []string{"", namespace}
}

// Authorize allows a request if a rule of a role allows it that is bound to the user or one of its groups, in the
// cluster or in the request's namespace. Otherwise it has no opinion, and the reason names up to ten missing roles
// that are bound to the caller. The error is always nil.
func (p *Policy) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	q := questionOf(a)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if by, ok := p.grant(u, a.GetNamespace(), &q); ok {
		return authorizer.DecisionAllow, "RBAC: allowed by " + by.String(), nil
	}
	if err := p.missing(u, a.GetNamespace()); err != nil {
		return authorizer.DecisionNoOpinion, "RBAC: " + err.Error(), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// grant returns a binding that allows q for the caller.
func (p *Policy) grant(u user.Info, namespace string, q *question) (boundSubject, bool) {
	var (
		sets   [16]set
		grants [16]*grants
	)
	found := p.rules.find(q, sets[:0])
	if len(found) == 0 {
		return boundSubject{}, false
	}
	for _, scope := range scopes(namespace) {
		for _, g := range p.of(u, scope, grants[:0]) {
			for _, roles := range found {
				if id, ok := roles.first(g.roles); ok {
					return g.by(id)
				}
			}
		}
	}
	return boundSubject{}, false
}

// ConditionsAwareAuthorize calls Authorize: roles have no conditions.
func (p *Policy) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(p.Authorize(ctx, a))
}

// EvaluateConditions always reports an error: there are no conditions to evaluate.
func (p *Policy) EvaluateConditions(
	context.Context,
	authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func questionOf(a authorizer.Attributes) question {
	if !a.IsResourceRequest() {
		return question{verb: a.GetVerb(), nonResource: true, path: a.GetPath()}
	}
	q := question{verb: a.GetVerb(), group: a.GetAPIGroup(), resource: a.GetResource(), name: a.GetName(), named: true}
	if sub := a.GetSubresource(); sub != "" {
		q.resource += "/" + sub
		q.anyParent = "*/" + sub
	}
	return q
}

// String formats the binding as in kube-apiserver's reasons.
func (b boundSubject) String() string {
	kind, name := "ClusterRoleBinding ", b.binding.name
	if b.binding.namespace != "" {
		kind, name = "RoleBinding ", name+"/"+b.binding.namespace
	}
	s := b.binding.subjects[b.subject]
	to := s.Name
	if s.Kind == rbacv1.ServiceAccountKind {
		to += "/" + cmp.Or(s.Namespace, b.binding.namespace)
	}
	return kind + strconv.Quote(
		name,
	) + " of " + b.binding.ref.Kind + " " + strconv.Quote(
		b.binding.ref.Name,
	) + " to " + s.Kind + " " + strconv.Quote(
		to,
	)
}

// missing returns an error that names missing roles which are bound to a caller, or nil.
func (p *Policy) missing(u user.Info, namespace string) error {
	if p.absent == nil {
		return nil
	}
	var (
		roles  set
		errs   []error
		more   int
		buffer [16]*grants
	)
	for _, scope := range scopes(namespace) {
		for _, g := range p.of(u, scope, buffer[:0]) {
			g.roles.common(p.absent, func(id uint32) bool {
				roles.add(id)
				return true
			})
		}
	}
	roles.common(roles, func(id uint32) bool {
		if len(errs) == maxMissing {
			more++
		} else {
			errs = append(errs, p.byID[id].notFound())
		}
		return true
	})
	if more > 0 {
		errs = append(errs, fmt.Errorf("%d more roles not found", more))
	}
	return utilerrors.NewAggregate(errs)
}

func (r *role) notFound() error {
	switch r.kind {
	case kindRole:
		return apierrors.NewNotFound(rbacv1.Resource("role"), r.name)
	case kindClusterRole:
		return apierrors.NewNotFound(rbacv1.Resource("clusterrole"), r.name)
	}
	return errors.New("unsupported role reference kind: " + strconv.Quote(r.kind))
}

// RulesFor returns the rules that apply to a caller in a namespace, and the non-resource rules: binding by binding in
// the order of their names, ClusterRoleBindings first. As in kube-apiserver, rules of several bindings are repeated,
// incomplete is false, and the error names missing roles even if there are rules.
func (p *Policy) RulesFor(
	_ context.Context,
	u user.Info,
	namespace string,
) (resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo, incomplete bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, scope := range scopes(namespace) {
		for _, b := range p.bindingsOf(u, scope) {
			for _, rule := range b.role.rules {
				if len(rule.Resources) > 0 {
					resources = append(resources, &authorizer.DefaultResourceRuleInfo{
						Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
					})
				}
				if len(rule.NonResourceURLs) > 0 {
					paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs})
				}
			}
		}
	}
	return resources, paths, false, p.missing(u, namespace)
}

// Administrator returns the ClusterRoleBindings that let a caller do everything with all resources, each with its
// ClusterRole.
func (p *Policy) Administrator(u user.Info) map[string]string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := map[string]string{}
	for _, b := range p.bindingsOf(u, "") {
		if slices.ContainsFunc(b.role.rules, isEverything) {
			all[b.name] = b.role.name
		}
	}
	return all
}

func isEverything(rule rbacv1.PolicyRule) bool {
	every := func(values []string) bool { return slices.Contains(values, "*") }
	return every(rule.Verbs) && every(rule.APIGroups) && every(rule.Resources)
}

// bindingsOf returns the bindings of a namespace that apply to a caller, sorted by name.
func (p *Policy) bindingsOf(u user.Info, namespace string) []*binding {
	var all []*binding
	for _, g := range p.of(u, namespace, nil) {
		for _, b := range g.bound {
			all = append(all, b.binding)
		}
	}
	slices.SortFunc(all, func(a, b *binding) int { return strings.Compare(a.name, b.name) })
	return slices.Compact(all)
}
