package rbac

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// aRole returns a role with the label level, which selects roles by their levels, and has one rule per resource.
func aRole(name, level string, selects []string, resources ...string) *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"level": level}}}
	for _, resource := range resources {
		role.Rules = append(role.Rules, resourceRule(names("get"), names(""), names(resource)))
	}
	for _, level := range selects {
		if role.AggregationRule == nil {
			role.AggregationRule = &rbacv1.AggregationRule{}
		}
		role.AggregationRule.ClusterRoleSelectors = append(
			role.AggregationRule.ClusterRoleSelectors,
			metav1.LabelSelector{MatchLabels: map[string]string{"level": level}},
		)
	}
	return role
}

// resourcesOf returns the resources in rules of aRole.
func resourcesOf(rules []rbacv1.PolicyRule) string {
	var all []string
	for _, rule := range rules {
		all = append(all, rule.Resources...)
	}
	return strings.Join(all, " ")
}

func TestAggregateAll(t *testing.T) {
	for _, test := range []struct {
		name  string
		roles []*rbacv1.ClusterRole
		want  map[string]string
	}{
		{"none", []*rbacv1.ClusterRole{aRole("a", "1", nil, "x")}, map[string]string{}},
		{"by name", []*rbacv1.ClusterRole{aRole("all", "", names("1")), aRole("b", "1", nil, "b"), aRole("a", "1", nil, "a1", "a2"),
			aRole("c", "2", nil, "c")},
			map[string]string{"all": "a1 a2 b"}},
		{"selector by selector", []*rbacv1.ClusterRole{aRole("all", "", names("2", "1")), aRole("a", "1", nil, "a"), aRole("b", "2", nil, "b")},
			map[string]string{"all": "b a"}},
		{"each rule once", []*rbacv1.ClusterRole{aRole("all", "", names("1", "1")), aRole("a", "1", nil, "x", "a"),
			aRole("b", "1", nil, "b", "x")},
			map[string]string{"all": "x a b"}},
		{"not its own", []*rbacv1.ClusterRole{aRole("all", "1", names("1"), "own"), aRole("a", "1", nil, "a")}, map[string]string{"all": "a"}},
		{"none to gather", []*rbacv1.ClusterRole{aRole("all", "1", names("1"), "own")}, map[string]string{"all": ""}},
		{"of aggregated roles", []*rbacv1.ClusterRole{aRole("a", "", names("2")), aRole("b", "2", names("1"), "old"), aRole("c", "1", nil, "c")},
			map[string]string{"a": "c", "b": "c"}},
		{"a long way round", []*rbacv1.ClusterRole{
			aRole("a", "1", names("2")), aRole("b", "2", names("3")), aRole("c", "3", names("4")), aRole("d", "4", names("5")),
			aRole("e", "5", nil, "x"),
		}, map[string]string{"a": "x", "b": "x", "c": "x", "d": "x"}},
		{"in a circle", []*rbacv1.ClusterRole{aRole("a", "1", names("2", "3"), "gone"), aRole("b", "2", names("1"), "gone"),
			aRole("c", "3", nil, "c")},
			map[string]string{"a": "c", "b": "c"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			all, err := AggregateAll(test.roles)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for name, rules := range all {
				got[name] = resourcesOf(rules)
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("all: got %q, want %q", got, test.want)
			}
		})
	}
}

func TestAggregateAll_expressions(t *testing.T) {
	role := aRole("all", "", names("1"))
	role.AggregationRule.ClusterRoleSelectors[0] = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "level", Operator: metav1.LabelSelectorOpNotIn, Values: names("2", "")},
	}}
	roles := []*rbacv1.ClusterRole{role, aRole("a", "1", nil, "a"), aRole("b", "2", nil, "b"), aRole("c", "3", nil, "c")}
	all, err := AggregateAll(roles)
	if rules := all["all"]; err != nil || resourcesOf(rules) != "a c" {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAggregateAll_invalidSelector(t *testing.T) {
	bad := aRole("bad", "1", names("1"), "held")
	bad.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "level", Operator: "Is"}}
	roles := []*rbacv1.ClusterRole{bad, aRole("all", "", names("1")), aRole("a", "1", nil, "a")}
	all, err := AggregateAll(roles)
	if err == nil || !strings.HasPrefix(err.Error(), `cluster role "bad": aggregationRule.clusterRoleSelectors[0]: `) {
		t.Errorf("all: %v", err)
	}
	if _, ok := all["bad"]; ok || resourcesOf(all["all"]) != "a held" {
		t.Errorf("%+v", all)
	}
	if !slices.Equal(roles, []*rbacv1.ClusterRole{bad, roles[1], roles[2]}) || len(bad.Rules) != 1 {
		t.Error("what was given is changed")
	}
}
