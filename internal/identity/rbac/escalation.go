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

// EscalationError refuses to let a caller give away what it does not have.
type EscalationError struct{ message string }

// Error is what kube-apiserver's answer 403 says after the name of the role or binding.
func (e *EscalationError) Error() string { return e.message }

// A RoleWrite is a request to create or update a Role or ClusterRole.
type RoleWrite struct {
	User user.Info
	// Namespace is empty for a ClusterRole.
	Namespace string
	// Name is that in the request's path: empty for a create with POST.
	Name string
	// Rules are those that the role would have.
	Rules []rbacv1.PolicyRule
	// Aggregates tells that the ClusterRole has an aggregation rule with selectors, or had one before the update.
	Aggregates bool
}

// CheckRole returns nil if the caller may write the role: members of system:masters, callers that may escalate the role by
// a (which may be nil), and those to whom the policy gives all of the role's rules in the role's namespace. One that
// aggregates takes all rights in the cluster. A refusal is an *EscalationError. The context's error is returned if it ends
// first; errors of a count as refusals of what it was asked for.
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
	// Namespace is that of the binding, and empty for a ClusterRoleBinding.
	Namespace string
	RoleRef   rbacv1.RoleRef
	// Rules returns those of the role that RoleRef names. It is asked only if they matter.
	Rules func(ctx context.Context) ([]rbacv1.PolicyRule, error)
}

// CheckBinding is CheckRole for a binding, with the verb bind on the role that it refers to. Errors of Rules are returned as
// they are.
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

// superuser tells of the group as which the server itself asks.
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

// Covers returns nil if the policy gives a caller all that the rules allow, by bindings of the namespace and of the cluster,
// or of the cluster only if the namespace is empty. Else it returns an *EscalationError that names what is missing, or the
// error of the context if that ended first.
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

// gives locks for a single question, so that a role of many rules does not hold up those that change the policy.
func (p *Policy) gives(u user.Info, namespace string, q *question) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, ok := p.grant(u, namespace, q)
	return ok
}

// atoms are the least things that rules allow: a verb on a resource of a group, of any name or a certain one, or on a path.
// Wildcards and patterns stay what they are.
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

// rule is the atom as a rule.
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

// gaps are atoms that are missing, those of a resource and name put together.
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

// String has a line for each, sorted.
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

// compact is a rule as refusals of escalation show it: lists that are empty are left out.
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

// missingRules are the atoms of rules that others do not cover.
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

// OnlyOwnersChange tells of an update that it changes nothing but owner references and finalizers, by which the garbage
// collector deletes. Old is nil in a create.
func OnlyOwnersChange(obj, old runtime.Object) bool {
	if old == nil {
		return false
	}
	obj = obj.DeepCopyObject()
	// Whether an object names its kind depends on the way that it came here.
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
