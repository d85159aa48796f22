package rbac

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// AggregateAll returns the rules of all aggregated ClusterRoles among all, by name. The rules of a role are those of
// the ClusterRoles that its selectors match, in the order of the selectors and then of the names, without duplicates.
// Aggregated roles may select each other. The stored rules of an aggregated role are ignored, so that a rule that the
// selected roles lose is lost everywhere, even if roles select each other in a cycle.
//
// A role with an invalid selector is not in the result, and the error names it. Its stored rules count for the roles
// that select it.
func AggregateAll(all []*rbacv1.ClusterRole) (map[string][]rbacv1.PolicyRule, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, compareNames)
	settled := map[string][]rbacv1.PolicyRule{}
	var (
		aggregations []*aggregation
		failed       []error
	)
	for _, role := range all {
		if role.AggregationRule == nil {
			continue
		}
		a, err := newAggregation(role)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		aggregations = append(aggregations, a)
		settled[role.Name] = nil
	}
	// Each iteration moves a rule at least one role forward, so all rules have arrived after as many iterations as
	// there are roles. Later iterations could only change their order, in cycles.
	for range aggregations {
		changed := false
		for _, a := range aggregations {
			rules := a.rules(all, settled)
			changed = changed || !equality.Semantic.DeepEqual(rules, settled[a.name])
			settled[a.name] = rules
		}
		if !changed {
			break
		}
	}
	return settled, errors.Join(failed...)
}

func compareNames(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) }

type aggregation struct {
	name      string
	selectors []labels.Selector
}

func newAggregation(role *rbacv1.ClusterRole) (*aggregation, error) {
	a := &aggregation{name: role.Name}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("cluster role %q: aggregationRule.clusterRoleSelectors[%d]: %w", role.Name, i, err)
		}
		a.selectors = append(a.selectors, selector)
	}
	return a, nil
}

// rules returns the rules that a gathers from all, which is sorted. For aggregated roles, settled replaces the stored
// rules.
func (a *aggregation) rules(all []*rbacv1.ClusterRole, settled map[string][]rbacv1.PolicyRule) []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{}
	seen := map[string]bool{}
	for _, selector := range a.selectors {
		for _, role := range all {
			if role.Name == a.name || !selector.Matches(labels.Set(role.Labels)) {
				continue
			}
			held := role.Rules
			if theirs, ok := settled[role.Name]; ok {
				held = theirs
			}
			for _, rule := range held {
				if key := compact(&rule); !seen[key] {
					seen[key] = true
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}
