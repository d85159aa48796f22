package rbac

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const (
	benchRoles    = 1000
	benchBindings = 5000
)

// benchRules returns ten rules of a role. Other roles have some of them as well.
func benchRules(role int) []rbacv1.PolicyRule {
	rules := []rbacv1.PolicyRule{
		resourceRule(names("get", "list", "watch"), names(""), names("pods", "services", "configmaps")),
		resourceRule(names("get"), names(""), names("secrets"), fmt.Sprintf("secret-%d", role)),
	}
	for i := range 8 {
		group, resource := fmt.Sprintf("group%d.example.com", (role+i)%200), fmt.Sprintf("resources%d", (role*7+i)%500)
		rules = append(
			rules,
			resourceRule(names("get", "list", "watch", "create", "update", "patch", "delete"), names(group), names(resource, resource+"/status")),
		)
	}
	return rules
}

// benchPolicy returns a policy of 1,000 ClusterRoles, 1,000 Roles and 5,000 bindings. If few is set, each user has
// one binding. Otherwise a single user has all of them, those of the Roles in the namespace shop.
func benchPolicy(few bool) *Policy {
	p := NewPolicy()
	for i := range benchRoles {
		p.SetRole("", fmt.Sprintf("role-%d", i), benchRules(i))
		p.SetRole("shop", fmt.Sprintf("role-%d", i), benchRules(i+benchRoles))
	}
	for i := range benchBindings {
		name, namespace, ref := "many", "shop", namespacedRole(fmt.Sprintf("role-%d", i%benchRoles))
		if i%2 == 0 {
			namespace, ref.Kind = "", "ClusterRole"
		}
		if few {
			name = fmt.Sprintf("user-%d", i)
		}
		p.SetBinding(namespace, fmt.Sprintf("binding-%d", i), ref, []rbacv1.Subject{userSubject(name)})
	}
	return p
}

func benchGroups() (groups []string) {
	for i := range 200 {
		groups = append(groups, fmt.Sprintf("cn=group-%d,ou=groups,dc=example,dc=com", i))
	}
	return groups
}

func BenchmarkAuthorize(b *testing.B) {
	for _, holding := range []struct {
		name    string
		few     bool
		cluster string // a user with cluster-wide bindings
		shop    string
	}{{"few bindings", true, "user-2", "user-3"}, {"many bindings", false, "many", "many"}} {
		p := benchPolicy(holding.few)
		groups := names("system:authenticated", "dev", "ops")
		cluster := &user.DefaultInfo{Name: holding.cluster, Groups: groups}
		shop := &user.DefaultInfo{Name: holding.shop, Groups: groups}
		on := func(u user.Info, verb, group, resource, object string) authorizer.AttributesRecord {
			return authorizer.AttributesRecord{
				User:            u,
				Verb:            verb,
				APIGroup:        group,
				Resource:        resource,
				Namespace:       "shop",
				Name:            object,
				ResourceRequest: true,
			}
		}
		for _, test := range []struct {
			name    string
			request authorizer.AttributesRecord
			want    bool
		}{
			{"by a cluster binding", on(cluster, "get", "group2.example.com", "resources14", "x"), true},
			{"by a role binding", on(shop, "get", "group3.example.com", "resources21", "x"), true},
			{"by a role binding, a secret", on(shop, "get", "", "secrets", "secret-1003"), true},
			{"refused, a verb", on(shop, "deletecollection", "", "pods", ""), false},
			{"refused, a secret", on(shop, "get", "", "secrets", "secret-x"), false},
			{"refused, what all others may", on(&user.DefaultInfo{Name: "other", Groups: groups}, "get", "", "pods", "x"), false},
			{"refused, of 200 groups", on(&user.DefaultInfo{Name: "other", Groups: benchGroups()}, "get", "", "pods", "x"), false},
			{"refused, a path", authorizer.AttributesRecord{User: shop, Verb: "get", Path: "/metrics"}, false},
		} {
			b.Run(holding.name+"/"+test.name, func(b *testing.B) {
				if got, reason := decide(b, p, test.request); got != test.want {
					b.Fatalf("allowed %v %s", got, reason)
				}
				var request authorizer.Attributes = test.request
				b.ReportAllocs()
				for b.Loop() {
					_, _, _ = p.Authorize(context.Background(), request)
				}
			})
		}
	}
}

// Checks the rules of ten roles for a user who has all of them.
func BenchmarkCovers(b *testing.B) {
	p := benchPolicy(false)
	var rules []rbacv1.PolicyRule
	for i := range 10 {
		rules = append(rules, benchRules(2*i)...)
	}
	u := &user.DefaultInfo{Name: "many"}
	for b.Loop() {
		if err := p.Covers(context.Background(), u, "shop", rules); err != nil {
			b.Fatal(err)
		}
	}
}

// Each iteration loads 2,000 roles and 5,000 bindings, one by one.
func BenchmarkLoad(b *testing.B) {
	for name, few := range map[string]bool{"5,000 users": true, "one user": false} {
		b.Run(name, func(b *testing.B) {
			var p *Policy
			for b.Loop() {
				p = benchPolicy(few)
			}
			b.StopTimer()
			var with, without runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&with)
			runtime.KeepAlive(p)
			p = nil
			runtime.GC()
			runtime.ReadMemStats(&without)
			b.ReportMetric(float64(with.HeapAlloc-without.HeapAlloc)/(1<<20), "MiB")
		})
	}
}

// Changes a role with 5,000 bindings, and a binding of a user with 5,000 bindings.
func BenchmarkChange(b *testing.B) {
	p := benchPolicy(false)
	rules := [][]rbacv1.PolicyRule{benchRules(1), benchRules(2)}
	b.Run("role", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			p.SetRole("", "role-2", rules[i%2])
		}
	})
	b.Run("binding", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			p.SetBinding("", "binding-2", clusterRole(fmt.Sprintf("role-%d", i%2)), []rbacv1.Subject{userSubject("many")})
		}
	})
}
