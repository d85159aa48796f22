package rbac

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// naive is a policy of plain lists, written from the RBAC documentation. It scans all bindings and their rules.
type naive struct {
	roles    map[string][]rbacv1.PolicyRule // by namespace/name
	bindings map[string]naiveBinding
}

type naiveBinding struct {
	namespace string
	ref       rbacv1.RoleRef
	subjects  []rbacv1.Subject
}

func newNaive() *naive {
	return &naive{roles: map[string][]rbacv1.PolicyRule{}, bindings: map[string]naiveBinding{}}
}

func (n *naive) rulesOf(namespace string, ref rbacv1.RoleRef) ([]rbacv1.PolicyRule, bool) {
	switch {
	case ref.Kind == "ClusterRole":
		rules, ok := n.roles["/"+ref.Name]
		return rules, ok
	case ref.Kind == "Role" && namespace != "":
		rules, ok := n.roles[namespace+"/"+ref.Name]
		return rules, ok
	}
	return nil, false
}

func means(s rbacv1.Subject, namespace string, u user.Info) bool {
	switch s.Kind {
	case "User":
		return s.Name == u.GetName()
	case "Group":
		return slices.Contains(u.GetGroups(), s.Name)
	case "ServiceAccount":
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return namespace != "" && u.GetName() == fmt.Sprintf("system:serviceaccount:%s:%s", namespace, s.Name)
	}
	return false
}

// held calls each with the rules of all bindings that apply.
func (n *naive) held(u user.Info, namespace string, each func(rbacv1.PolicyRule)) {
	for _, b := range n.bindings {
		if b.namespace != "" && b.namespace != namespace {
			continue
		}
		if !slices.ContainsFunc(b.subjects, func(s rbacv1.Subject) bool { return means(s, b.namespace, u) }) {
			continue
		}
		rules, _ := n.rulesOf(b.namespace, b.ref)
		for _, rule := range rules {
			each(rule)
		}
	}
}

func (n *naive) allows(a authorizer.Attributes) bool {
	allowed := false
	n.held(a.GetUser(), a.GetNamespace(), func(rule rbacv1.PolicyRule) { allowed = allowed || ruleAllows(rule, a) })
	return allowed
}

func ruleAllows(rule rbacv1.PolicyRule, a authorizer.Attributes) bool {
	either := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	if !either(rule.Verbs, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool { return urlMatches(url, a.GetPath()) })
	}
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	return either(rule.APIGroups, a.GetAPIGroup()) &&
		(either(rule.Resources, resource) || a.GetSubresource() != "" && slices.Contains(rule.Resources, "*/"+a.GetSubresource())) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func urlMatches(rule, path string) bool {
	return rule == path || strings.HasSuffix(rule, "*") && strings.HasPrefix(path, strings.TrimRight(rule, "*"))
}

// missing returns the smallest units of rules that the caller does not hold, as verb, group, resource and name, or as
// verb and path.
func (n *naive) missing(u user.Info, namespace string, rules []rbacv1.PolicyRule) (parts []string) {
	var held []rbacv1.PolicyRule
	n.held(u, namespace, func(rule rbacv1.PolicyRule) { held = append(held, rule) })
	lacks := func(covers func(rbacv1.PolicyRule) bool, part ...any) {
		if !slices.ContainsFunc(held, covers) {
			parts = append(parts, fmt.Sprintf("%q", part))
		}
	}
	either := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, path := range rule.NonResourceURLs {
				lacks(func(h rbacv1.PolicyRule) bool {
					return either(h.Verbs, verb) && slices.ContainsFunc(h.NonResourceURLs, func(url string) bool { return urlMatches(url, path) })
				}, verb, path)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					covers := func(h rbacv1.PolicyRule) bool {
						_, sub, isSub := strings.Cut(resource, "/")
						return either(h.Verbs, verb) && either(h.APIGroups, group) &&
							(either(h.Resources, resource) || isSub && slices.Contains(h.Resources, "*/"+sub))
					}
					if len(rule.ResourceNames) == 0 {
						lacks(func(h rbacv1.PolicyRule) bool { return covers(h) && len(h.ResourceNames) == 0 }, verb, group, resource)
					}
					for _, name := range rule.ResourceNames {
						lacks(func(h rbacv1.PolicyRule) bool {
							return covers(h) && (len(h.ResourceNames) == 0 || slices.Contains(h.ResourceNames, name))
						}, verb, group, resource, name)
					}
				}
			}
		}
	}
	return parts
}
