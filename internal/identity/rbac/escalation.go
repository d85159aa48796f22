package rbac

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// EscalationError is returned when a caller would grant rights that it does not have.
type EscalationError struct{ message string }

// Error returns the text that follows the name of the role or binding in kube-apiserver's 403 responses.
func (e *EscalationError) Error() string { return e.message }

// A RoleWrite is a request to create or update a Role or ClusterRole.
type RoleWrite struct {
	User user.Info
	// Namespace is empty for a ClusterRole.
	Namespace string
	// Name is the name in the request's path: empty for a create with POST.
	Name string
	// Rules are the rules of the role after the write.
	Rules []rbacv1.PolicyRule
	// Aggregates is set if the ClusterRole has an aggregation rule with selectors, or had one before the update.
	Aggregates bool
}

// CheckRole returns nil if the caller may write the role: if it is a member of system:masters, if a (which may be
// nil) allows it to escalate the role, or if the policy grants it all of the role's rules in the role's namespace.
// Writing an aggregated role requires all rights in the cluster. A refusal is an *EscalationError. If the context
// ends first, CheckRole returns the context's error. Errors of a count as refusals by a.
//
// An update for which OnlyOwnersChange is true needs no check.
func (p *Policy) CheckRole(ctx context.Context, a authorizer.UnconditionalAuthorizer, w RoleWrite) error {
	resource := "roles"
	if w.Namespace == "" {
		resource = "clusterroles"
	}
	if superuser(w.User) || allowed(ctx, a, w.User, "escalate", rbacv1.GroupName, resource, w.Namespace, w.Name) {
		return nil
	}
	if err := p.Covers(ctx, w.User, w.Namespace, w.Rules); err != nil || !w.Aggregates {
		return err
	}
	all := []string{"*"}
	err := p.Covers(
		ctx,
		w.User,
		w.Namespace,
		[]rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}},
	)
	if err != nil && ctx.Err() == nil {
		return &EscalationError{"must have cluster-admin privileges to use the aggregationRule"}
	}
	return err
}

// A BindingWrite is a request to create or update a RoleBinding or ClusterRoleBinding.
type BindingWrite struct {
	User user.Info
	// Namespace is the namespace of the binding; empty for a ClusterRoleBinding.
	Namespace string
	RoleRef   rbacv1.RoleRef
	// Rules returns the rules of the role that RoleRef names. It is called only if the decision depends on them.
	Rules func(ctx context.Context) ([]rbacv1.PolicyRule, error)
}

// CheckBinding is like CheckRole for a binding, with the verb bind on the referenced role. It returns errors of Rules
// unchanged.
func (p *Policy) CheckBinding(ctx context.Context, a authorizer.UnconditionalAuthorizer, w BindingWrite) error {
	if superuser(w.User) {
		return nil
	}
	resource := map[string]string{kindRole: "roles", kindClusterRole: "clusterroles"}[w.RoleRef.Kind]
	if resource != "" && allowed(ctx, a, w.User, "bind", w.RoleRef.APIGroup, resource, w.Namespace, w.RoleRef.Name) {
		return nil
	}
	rules, err := w.Rules(ctx)
	if err != nil {
		return err
	}
	return p.Covers(ctx, w.User, w.Namespace, rules)
}

// superuser reports whether u is in the group that the server itself belongs to.
func superuser(u user.Info) bool { return slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) }

func allowed(ctx context.Context, a authorizer.UnconditionalAuthorizer, u user.Info, verb, group, resource, namespace, name string) bool {
	if a == nil {
		return false
	}
	decision, _, _ := a.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: group, APIVersion: "*", Resource: resource, Namespace: namespace, Name: name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

// Covers returns nil if the policy grants a caller everything that the rules allow, by bindings of the namespace and
// of the cluster; if the namespace is empty, by bindings of the cluster only. Otherwise it returns an
// *EscalationError that lists the missing rights. If the context ends first, Covers returns the context's error.
func (p *Policy) Covers(ctx context.Context, u user.Info, namespace string, rules []rbacv1.PolicyRule) error {
	var gaps gaps
	for a := range atoms(rules) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.gives(u, namespace, &a) {
			continue
		}
		if gaps.add(&a); gaps.size > mostMissing {
			break
		}
	}
	if len(gaps.order) == 0 {
		return nil
	}
	message := fmt.Sprintf(
		"user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s",
		u.GetName(),
		u.GetGroups(),
		gaps.String(),
	)
	if gaps.size > mostMissing {
		message += "\nand more"
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if err := p.missing(u, namespace); err != nil {
		message += fmt.Sprintf("; resolution errors: [%v]", err)
	}
	return &EscalationError{message}
}

// gives locks the policy for a single question, so that checking a role with many rules does not block writers of the
// policy.
func (p *Policy) gives(u user.Info, namespace string, q *question) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, ok := p.grant(u, namespace, q)
	return ok
}

// atoms yields the smallest units of rules: one verb on one resource of one group, for all names or for one name, or
// one verb on one path. Wildcards and patterns are not expanded.
//
// They come one by one, because a rule of 20 kB can have a billion combinations. BreakdownRule of
// k8s.io/component-helpers, with which a test compares them, makes all at once.
func atoms(rules []rbacv1.PolicyRule) iter.Seq[question] {
	return func(yield func(question) bool) {
		for _, rule := range rules {
			for q := range resourceAtoms(rule) {
				if !yield(q) {
					return
				}
			}
			for _, path := range rule.NonResourceURLs {
				for _, verb := range rule.Verbs {
					if !yield(question{verb: verb, nonResource: true, path: path}) {
						return
					}
				}
			}
		}
	}
}

func resourceAtoms(rule rbacv1.PolicyRule) iter.Seq[question] {
	return func(yield func(question) bool) {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				q := question{group: group, resource: resource}
				if _, sub, ok := strings.Cut(resource, "/"); ok {
					q.anyParent = "*/" + sub
				}
				for _, q.verb = range rule.Verbs {
					if len(rule.ResourceNames) == 0 && !yield(q) {
						return
					}
					for _, name := range rule.ResourceNames {
						named := q
						named.name, named.named = name, true
						if !yield(named) {
							return
						}
					}
				}
			}
		}
	}
}

// rule returns the atom as a rule.
func (q *question) rule() rbacv1.PolicyRule {
	if q.nonResource {
		return rbacv1.PolicyRule{Verbs: []string{q.verb}, NonResourceURLs: []string{q.path}}
	}
	rule := rbacv1.PolicyRule{Verbs: []string{q.verb}, APIGroups: []string{q.group}, Resources: []string{q.resource}}
	if q.named {
		rule.ResourceNames = []string{q.name}
	}
	return rule
}

// mostMissing bounds the missing atoms that a refusal names, in bytes. A caller without any right could have the server
// collect a billion of them.
const mostMissing = 1 << 20

// gaps collects missing atoms, grouped by resource and name.
type gaps struct {
	verbs map[question][]string // by the atom without its verb
	order []question
	size  int // of the atoms, in bytes
}

func (g *gaps) add(q *question) {
	const overhead = 16
	g.size += len(q.verb) + len(q.group) + len(q.resource) + len(q.name) + len(q.path) + overhead
	key := *q
	if !q.nonResource {
		key.verb = ""
	}
	verbs, ok := g.verbs[key]
	if !ok {
		if g.verbs == nil {
			g.verbs = map[question][]string{}
		}
		g.order = append(g.order, key)
	}
	if !ok || !q.nonResource {
		g.verbs[key] = append(verbs, q.verb)
	}
}

// String returns one line per group, sorted.
func (g *gaps) String() string {
	var lines []string
	for _, key := range g.order {
		rule := key.rule()
		rule.Verbs = g.verbs[key]
		lines = append(lines, compact(&rule))
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// compact formats a rule for escalation errors, without empty lists.
func compact(rule *rbacv1.PolicyRule) string {
	var parts []string
	for _, list := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", rule.APIGroups}, {"Resources", rule.Resources}, {"NonResourceURLs", rule.NonResourceURLs},
		{"ResourceNames", rule.ResourceNames}, {"Verbs", rule.Verbs},
	} {
		if len(list.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", list.name, list.values))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// missingRules returns the atoms of want that have does not cover.
func missingRules(have, want []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	index := newIndex()
	index.add(0, have)
	var missing []rbacv1.PolicyRule
	for q := range atoms(want) {
		if len(index.find(&q, nil)) == 0 {
			missing = append(missing, q.rule())
		}
	}
	return missing
}

// OnlyOwnersChange reports whether an update changes only owner references and finalizers, as updates of the garbage
// collector do. It returns false for a create, where old is nil.
func OnlyOwnersChange(obj, old runtime.Object) bool {
	if old == nil {
		return false
	}
	obj = obj.DeepCopyObject()
	// Whether an object contains its kind depends on how it was decoded.
	obj.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	changed, err := meta.Accessor(obj)
	if err != nil {
		return false
	}
	before, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	changed.SetOwnerReferences(before.GetOwnerReferences())
	changed.SetFinalizers(before.GetFinalizers())
	changed.SetSelfLink(before.GetSelfLink())
	changed.SetManagedFields(before.GetManagedFields())
	return equality.Semantic.DeepEqual(obj, old)
}
