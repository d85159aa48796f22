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

// AggregateAll returns the rules of the aggregated ClusterRoles among all, by name: those that the ClusterRoles have which a
// role's selectors choose, selector by selector, by name, each rule once. Aggregated roles may select each other. What an
// aggregated role holds itself does not count, so that rules which selected roles lose are lost, also
// where roles select each other in a circle. A role that has a selector which is none is left out and named in the error;
// for the others it has the rules that it holds.
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
	// A rule passes at least one role on its way in each round, and so all have arrived after as many as there are.
	// Only their order may still change then, in circles.
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

// rules are those of all, which are sorted. Settled ones take the place of those that roles hold.
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
