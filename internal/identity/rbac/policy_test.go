package rbac

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func names(s ...string) []string { return s }

func clusterRole(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

func namespacedRole(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}
}

func userSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}
}

func groupSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "Group", APIGroup: rbacv1.GroupName, Name: name}
}

func accountSubject(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}
}

func resourceRule(verbs, groups, resources []string, objects ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, ResourceNames: objects}
}

func decide(t testing.TB, p *Policy, a authorizer.AttributesRecord) (bool, string) {
	t.Helper()
	decision, reason, err := p.Authorize(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	switch decision {
	case authorizer.DecisionAllow:
		return true, reason
	case authorizer.DecisionNoOpinion:
		return false, reason
	}
	t.Fatalf("the decision is %v", decision)
	return false, ""
}

func TestAuthorize_rules(t *testing.T) {
	get := resourceRule(names("get"), names("apps"), names("deployments"))
	on := func(verb, group, resource, sub, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Subresource: sub, Name: name, ResourceRequest: true}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	urls := func(verb string, urls ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: names(verb), NonResourceURLs: urls}
	}
	all := names("*")
	for _, test := range []struct {
		name    string
		rule    rbacv1.PolicyRule
		request authorizer.AttributesRecord
		want    bool
	}{
		{"what it names", get, on("get", "apps", "deployments", "", "a"), true},
		{"another verb", get, on("list", "apps", "deployments", "", ""), false},
		{"another group", get, on("get", "", "deployments", "", "a"), false},
		{"another resource", get, on("get", "apps", "replicasets", "", "a"), false},
		{"a subresource of what it names", get, on("get", "apps", "deployments", "status", "a"), false},
		{"any verb", resourceRule(all, names("apps"), names("deployments")), on("delete", "apps", "deployments", "", "a"), true},
		{"any group", resourceRule(names("get"), all, names("deployments")), on("get", "other", "deployments", "", "a"), true},
		{"any resource", resourceRule(names("get"), names("apps"), all), on("get", "apps", "replicasets", "", "a"), true},
		{"any resource, a subresource", resourceRule(names("get"), names("apps"), all), on("get", "apps", "deployments", "scale", "a"), true},
		{"a request for any verb needs any verb", get, on("*", "apps", "deployments", "", ""), false},
		{"a request for any verb is allowed by any verb", resourceRule(all, all, all), on("*", "*", "*", "", ""), true},
		{"the core group is no wildcard", resourceRule(names("get"), names(""), names("pods")), on("get", "apps", "pods", "", ""), false},
		{"the core group", resourceRule(names("get"), names(""), names("pods")), on("get", "", "pods", "", ""), true},
		{"a subresource", resourceRule(names("get"), names(""), names("pods/log")), on("get", "", "pods", "log", "a"), true},
		{"a subresource is not its resource", resourceRule(names("get"), names(""), names("pods/log")), on("get", "", "pods", "", "a"), false},
		{"a subresource of all", resourceRule(names("update"), names("apps"), names("*/scale")),
			on("update", "apps", "deployments", "scale", "a"), true},
		{"another than a subresource of all", resourceRule(names("update"), names("apps"), names("*/scale")),
			on("update", "apps", "deployments", "status", "a"), false},
		{"a longer one than a subresource of all", resourceRule(names("update"), names("apps"), names("*/scale")),
			on("update", "apps", "deployments", "upscale", "a"), false},
		{"a resource is none of the subresources of all", resourceRule(names("update"), names("apps"), names("*/scale")),
			on("update", "apps", "scale", "", "a"), false},
		{"all subresources of a resource is no pattern", resourceRule(names("get"), names(""), names("pods/*")),
			on("get", "", "pods", "log", "a"), false},
		{"all subresources of all is no pattern", resourceRule(names("get"), names(""), names("*/*")), on("get", "", "pods", "log", "a"), false},
		{"a subresource with a slash", resourceRule(names("get"), names(""), names("*/proxy/x")), on("get", "", "pods", "proxy/x", "a"), true},
		{"a part of a name is no pattern", resourceRule(names("get"), names(""), names("po*")), on("get", "", "pods", "", "a"), false},
		{"an object of a name", resourceRule(names("get"), names(""), names("pods"), "a", "b"), on("get", "", "pods", "", "b"), true},
		{"an object of another name", resourceRule(names("get"), names(""), names("pods"), "a"), on("get", "", "pods", "", "b"), false},
		{"the star is no wildcard of names", resourceRule(names("get"), names(""), names("pods"), "*"), on("get", "", "pods", "", "b"), false},
		{"create has no name", resourceRule(names("create"), names(""), names("pods"), "a"), on("create", "", "pods", "", ""), false},
		{"list has no name", resourceRule(names("list"), names(""), names("pods"), "a"), on("list", "", "pods", "", ""), false},
		{"list of a name", resourceRule(names("list"), names(""), names("pods"), "a"), on("list", "", "pods", "", "a"), true},
		{"deletecollection has no name", resourceRule(names("deletecollection"), names(""), names("pods"), "a"),
			on("deletecollection", "", "pods", "", ""), false},
		{"an empty name is a name", resourceRule(names("create"), names(""), names("pods"), ""), on("create", "", "pods", "", ""), true},
		{"a path", urls("get", "/metrics"), path("get", "/metrics"), true},
		{"a path with another verb", urls("get", "/metrics"), path("post", "/metrics"), false},
		{"a path with any verb", urls("*", "/metrics"), path("post", "/metrics"), true},
		{"what is below a path", urls("get", "/metrics"), path("get", "/metrics/x"), false},
		{"a pattern", urls("get", "/healthz/*"), path("get", "/healthz/ping"), true},
		{"a pattern needs its slash", urls("get", "/healthz/*"), path("get", "/healthz"), false},
		{"a pattern without slash", urls("get", "/healthz*"), path("get", "/healthzzz"), true},
		{"a pattern with several stars", urls("get", "/a**"), path("get", "/abc"), true},
		{"a star inside is none", urls("get", "/a*c"), path("get", "/abc"), false},
		{"any path", urls("get", "*"), path("get", "/x/y"), true},
		{"any path but an empty one", urls("get", "/*"), path("get", ""), false},
		{"rules for resources allow no paths", resourceRule(all, all, all), path("get", "/metrics"), false},
		{"rules for paths allow no resources", urls("*", "*"), on("get", "", "pods", "", "a"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, limit := range []int{maxIndexed, 0} {
				p := NewPolicy()
				p.rules.limit = limit
				p.SetRole("", "r", []rbacv1.PolicyRule{test.rule})
				p.SetBinding("", "b", clusterRole("r"), []rbacv1.Subject{userSubject("ann")})
				test.request.User = &user.DefaultInfo{Name: "ann"}
				if got, _ := decide(t, p, test.request); got != test.want {
					t.Errorf("with at most %d combinations indexed: allowed %v, want %v", limit, got, test.want)
				}
			}
		})
	}
}

func TestAuthorize_bindings(t *testing.T) {
	read := []rbacv1.PolicyRule{resourceRule(names("get"), names(""), names("pods"))}
	type binding struct {
		namespace string
		ref       rbacv1.RoleRef
		subject   rbacv1.Subject
	}
	for _, test := range []struct {
		name      string
		binding   binding
		caller    user.DefaultInfo
		namespace string
		want      string // the reason of an allowed request; empty for a refusal
		refusal   string // the reason of a refusal
	}{
		{"a user in the cluster", binding{"", clusterRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "",
			`ClusterRoleBinding "b" of ClusterRole "r" to User "ann"`, ""},
		{"a binding of the cluster in a namespace", binding{"", clusterRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "x",
			`ClusterRoleBinding "b" of ClusterRole "r" to User "ann"`, ""},
		{"another user", binding{"", clusterRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "bob"}, "", "", ""},
		{"a group", binding{"", clusterRole("r"), groupSubject("dev")}, user.DefaultInfo{Name: "bob", Groups: names("ops", "dev")}, "",
			`ClusterRoleBinding "b" of ClusterRole "r" to Group "dev"`, ""},
		{"a group is no user", binding{"", clusterRole("r"), userSubject("dev")}, user.DefaultInfo{Name: "bob", Groups: names("dev")}, "", "",
			""},
		{"a user is no group", binding{"", clusterRole("r"), groupSubject("bob")}, user.DefaultInfo{Name: "bob"}, "", "", ""},
		{"a role in its namespace", binding{"x", namespacedRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "x",
			`RoleBinding "b/x" of Role "r" to User "ann"`, ""},
		{"a role in another namespace", binding{"x", namespacedRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "y", "", ""},
		{"a role outside of namespaces", binding{"x", namespacedRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "", "", ""},
		{"a cluster role in a namespace", binding{"y", clusterRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "y",
			`RoleBinding "b/y" of ClusterRole "r" to User "ann"`, ""},
		{"a service account", binding{"", clusterRole("r"), accountSubject("x", "robot")},
			user.DefaultInfo{Name: "system:serviceaccount:x:robot"}, "y",
			`ClusterRoleBinding "b" of ClusterRole "r" to ServiceAccount "robot/x"`, ""},
		{"a service account of the binding's namespace", binding{"x", namespacedRole("r"), accountSubject("", "robot")},
			user.DefaultInfo{Name: "system:serviceaccount:x:robot"}, "x", `RoleBinding "b/x" of Role "r" to ServiceAccount "robot/x"`, ""},
		{"a service account of another namespace", binding{"x", namespacedRole("r"), accountSubject("y", "robot")},
			user.DefaultInfo{Name: "system:serviceaccount:y:robot"}, "x", `RoleBinding "b/x" of Role "r" to ServiceAccount "robot/y"`, ""},
		{"a service account that is not meant", binding{"x", namespacedRole("r"), accountSubject("", "robot")},
			user.DefaultInfo{Name: "system:serviceaccount:y:robot"}, "x", "", ""},
		{"a service account without namespace in the cluster", binding{"", clusterRole("r"), accountSubject("", "robot")},
			user.DefaultInfo{Name: "system:serviceaccount::robot"}, "", "", ""},
		{"a subject of another kind", binding{"", clusterRole("r"), rbacv1.Subject{Kind: "Robot", Name: "ann"}},
			user.DefaultInfo{Name: "ann"}, "", "", ""},
		{"a role that is missing", binding{"x", namespacedRole("none"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "x", "",
			`RBAC: role.rbac.authorization.k8s.io "none" not found`},
		{"a role of another namespace is missing", binding{"y", namespacedRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "y", "",
			`RBAC: role.rbac.authorization.k8s.io "r" not found`},
		{"a cluster role that is missing", binding{"", clusterRole("none"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "", "",
			`RBAC: clusterrole.rbac.authorization.k8s.io "none" not found`},
		{"a role in a binding of the cluster", binding{"", namespacedRole("r"), userSubject("ann")}, user.DefaultInfo{Name: "ann"}, "", "",
			`RBAC: role.rbac.authorization.k8s.io "r" not found`},
		{"a role of another kind", binding{"", rbacv1.RoleRef{Kind: "Rule", Name: "r"}, userSubject("ann")}, user.DefaultInfo{Name: "ann"},
			"", "",
			`RBAC: unsupported role reference kind: "Rule"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := NewPolicy()
			p.SetBinding(test.binding.namespace, "b", test.binding.ref, []rbacv1.Subject{userSubject("nobody"), test.binding.subject})
			p.SetRole("", "r", read)
			p.SetRole("x", "r", read)
			allowed, reason := decide(t, p, authorizer.AttributesRecord{
				User: &test.caller, Verb: "get", Resource: "pods", Namespace: test.namespace, Name: "p", ResourceRequest: true,
			})
			want := test.refusal
			if test.want != "" {
				want = "RBAC: allowed by " + test.want
			}
			if allowed != (test.want != "") || reason != want {
				t.Errorf("allowed: %v, reason %s\nwant reason %s", allowed, reason, want)
			}
		})
	}
}

func TestAuthorize_missingRoles_areBounded(t *testing.T) {
	p := NewPolicy()
	for i := range 100 {
		p.SetBinding("", strconv.Itoa(i), clusterRole("r"+strconv.Itoa(i)), []rbacv1.Subject{userSubject("ann"), groupSubject("dev")})
	}
	_, reason := decide(t, p, authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann", Groups: names("dev")}, Verb: "get", Path: "/"})
	if !strings.HasPrefix(reason, `RBAC: [clusterrole.rbac.authorization.k8s.io "r0" not found, `) ||
		!strings.HasSuffix(reason, ", 90 more roles not found]") {
		t.Error(reason)
	}
}

func TestAuthorize_changes(t *testing.T) {
	p := NewPolicy()
	read, write := resourceRule(names("get"), names(""), names("pods")), resourceRule(names("update"), names(""), names("pods"))
	ask := func(verb string) bool {
		allowed, _ := decide(
			t,
			p,
			authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: verb, Resource: "pods", Namespace: "x", ResourceRequest: true},
		)
		return allowed
	}
	for _, step := range []struct {
		name        string
		change      func()
		read, write bool
	}{
		{"nothing", func() {}, false, false},
		{"a binding without role", func() { p.SetBinding("x", "b", namespacedRole("r"), []rbacv1.Subject{userSubject("ann")}) }, false, false},
		{"the role", func() { p.SetRole("x", "r", []rbacv1.PolicyRule{read}) }, true, false},
		{"other rules", func() { p.SetRole("x", "r", []rbacv1.PolicyRule{write}) }, false, true},
		{"no rules", func() { p.SetRole("x", "r", nil) }, false, false},
		{"both rules", func() { p.SetRole("x", "r", []rbacv1.PolicyRule{read, write}) }, true, true},
		{"the role deleted", func() { p.DeleteRole("x", "r") }, false, false},
		{"the role deleted again", func() { p.DeleteRole("x", "r") }, false, false},
		{"the role created again", func() { p.SetRole("x", "r", []rbacv1.PolicyRule{read}) }, true, false},
		{"other subjects", func() { p.SetBinding("x", "b", namespacedRole("r"), []rbacv1.Subject{userSubject("bob")}) }, false, false},
		{"the subjects of before", func() { p.SetBinding("x", "b", namespacedRole("r"), []rbacv1.Subject{userSubject("ann")}) }, true, false},
		{"a second binding", func() { p.SetBinding("x", "c", namespacedRole("r"), []rbacv1.Subject{userSubject("ann")}) }, true, false},
		{"the first deleted", func() { p.DeleteBinding("x", "b") }, true, false},
		{"the second deleted", func() { p.DeleteBinding("x", "c") }, false, false},
		{"the second deleted again", func() { p.DeleteBinding("x", "c") }, false, false},
	} {
		step.change()
		if r, w := ask("get"), ask("update"); r != step.read || w != step.write {
			t.Errorf("%s: get %v, update %v; want %v, %v", step.name, r, w, step.read, step.write)
		}
	}
	p.DeleteRole("x", "r")
	if !reflect.DeepEqual(p, &Policy{
		rules: newIndex(), roles: map[roleKey]*role{}, bindings: map[bindingKey]*binding{}, subjects: map[string]map[subject]*grants{},
		byID: []*role{nil}, free: []uint32{0},
	}) {
		t.Errorf("something is left: %+v", p)
	}
}

func TestRulesFor(t *testing.T) {
	p := NewPolicy()
	pods := resourceRule(names("get"), names(""), names("pods"), "a")
	p.SetRole("", "pods", []rbacv1.PolicyRule{pods, {Verbs: names("get"), NonResourceURLs: names("/x")}})
	p.SetRole("x", "nodes", []rbacv1.PolicyRule{resourceRule(names("list"), names(""), names("nodes"))})
	p.SetBinding("", "2", clusterRole("pods"), []rbacv1.Subject{groupSubject("dev"), userSubject("ann")})
	p.SetBinding("", "1", clusterRole("none"), []rbacv1.Subject{userSubject("ann")})
	p.SetBinding("x", "2", clusterRole("pods"), []rbacv1.Subject{userSubject("ann")})
	p.SetBinding("x", "1", namespacedRole("nodes"), []rbacv1.Subject{userSubject("ann")})
	p.SetBinding("y", "1", namespacedRole("nodes"), []rbacv1.Subject{userSubject("ann")})
	ann := &user.DefaultInfo{Name: "ann", Groups: names("dev")}

	resources, paths, incomplete, err := p.RulesFor(t.Context(), ann, "x")
	var got []string
	for _, r := range resources {
		got = append(got, fmt.Sprint(r.GetVerbs(), r.GetAPIGroups(), r.GetResources(), r.GetResourceNames()))
	}
	for _, r := range paths {
		got = append(got, fmt.Sprint(r.GetVerbs(), r.GetNonResourceURLs()))
	}
	want := names("[get] [] [pods] [a]", "[list] [] [nodes] []", "[get] [] [pods] [a]", "[get] [/x]", "[get] [/x]")
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if incomplete || err == nil || err.Error() != `clusterrole.rbac.authorization.k8s.io "none" not found` {
		t.Errorf("incomplete %v, %v", incomplete, err)
	}
	if resources, paths, _, err = p.RulesFor(
		t.Context(),
		&user.DefaultInfo{Name: "bob", Groups: names("dev")},
		"",
	); len(resources) != 1 || len(paths) != 1 ||
		err != nil {
		t.Errorf("outside of namespaces: %v, %v, %v", resources, paths, err)
	}
}

func TestEvaluateConditions(t *testing.T) {
	p := NewPolicy()
	p.SetRole("", "all", []rbacv1.PolicyRule{{Verbs: names("*"), NonResourceURLs: names("*")}})
	p.SetBinding("", "all", clusterRole("all"), []rbacv1.Subject{userSubject("ann")})
	for name, want := range map[string]bool{"ann": true, "bob": false} {
		aware := p.ConditionsAwareAuthorize(
			t.Context(),
			authorizer.AttributesRecord{User: &user.DefaultInfo{Name: name}, Verb: "get", Path: "/"},
		)
		if aware.IsAllow() != want {
			t.Errorf("%s is allowed: %v", name, aware.IsAllow())
		}
	}
}

// random generates policies and requests from few words, so that they often match.
type random struct {
	*rand.Rand
	broad bool // occasionally generates rules with more combinations than are indexed
}

func (r *random) some(values ...string) []string {
	var chosen []string
	for range 1 + r.IntN(4) {
		chosen = append(chosen, values[r.IntN(len(values))])
	}
	return chosen
}

func (r *random) one(values ...string) string { return values[r.IntN(len(values))] }

var (
	someVerbs      = names("get", "list", "create", "delete", "*")
	someGroups     = names("", "apps", "batch", "*")
	someResources  = names("pods", "pods/log", "jobs", "jobs/scale", "*/scale", "*/log", "nodes", "pods/*", "*")
	someNames      = names("a", "b", "")
	somePaths      = names("/", "/a", "/a/*", "/a/b", "/a*", "/ab**", "*", "/*")
	someNamespaces = names("", "x", "y")
	someSubjects   = []rbacv1.Subject{
		userSubject("ann"), userSubject("bob"), groupSubject("dev"), groupSubject("ann"), userSubject("system:serviceaccount:x:robot"),
		accountSubject("", "robot"), accountSubject("x", "robot"), accountSubject("y", "robot"), {Kind: "Robot", Name: "ann"},
	}
	someCallers = []user.Info{
		&user.DefaultInfo{
			Name: "ann",
		},
		&user.DefaultInfo{Name: "bob", Groups: names("dev", "ops")},
		&user.DefaultInfo{Name: "eve", Groups: names("ann")},
		&user.DefaultInfo{
			Name: "system:serviceaccount:x:robot",
		},
		&user.DefaultInfo{Name: "system:serviceaccount:y:robot", Groups: names("dev")},
		&user.DefaultInfo{},
	}
)

func (r *random) rules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range r.IntN(7) {
		rule := rbacv1.PolicyRule{Verbs: r.some(someVerbs...)}
		if r.IntN(4) == 0 {
			rule.NonResourceURLs = r.some(somePaths...)
		} else {
			rule.APIGroups, rule.Resources = r.some(someGroups...), r.some(someResources...)
			if r.IntN(3) == 0 {
				rule.ResourceNames = r.some(someNames...)
			}
		}
		if r.broad && r.IntN(10) == 0 {
			for i := range 600 {
				rule.Verbs = append(rule.Verbs, "v"+strconv.Itoa(i))
			}
			if rule.NonResourceURLs != nil {
				rule.NonResourceURLs = append(rule.NonResourceURLs, "/v", "/w")
			} else {
				rule.Resources = append(rule.Resources, "v", "w")
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func (r *random) request() authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User:      someCallers[r.IntN(len(someCallers))],
		Verb:      r.one(someVerbs...),
		Namespace: r.one(someNamespaces...),
	}
	if r.IntN(4) == 0 {
		a.Path = r.one(append(somePaths, "/abc", "/v")...)
		return a
	}
	a.ResourceRequest, a.APIGroup, a.Name = true, r.one(someGroups...), r.one(append(someNames, "c")...)
	a.Resource, a.Subresource, _ = strings.Cut(r.one(append(someResources, "v")...), "/")
	return a
}

// seed returns a random source, or a fixed one: ANNEX_RBAC_SEED=1 go test ./internal/identity/rbac -run likeNaive
func seed(t *testing.T) *rand.Rand {
	s := rand.Uint64()
	if fixed := os.Getenv("ANNEX_RBAC_SEED"); fixed != "" {
		var err error
		if s, err = strconv.ParseUint(fixed, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed: ANNEX_RBAC_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

func (r *random) change(p *Policy, n *naive) {
	namespace, name := r.one(someNamespaces...), r.one("1", "2", "3", "4")
	key := namespace + "/" + name
	switch r.IntN(12) {
	case 0:
		p.DeleteRole(namespace, name)
		delete(n.roles, key)
	case 1:
		p.DeleteBinding(namespace, name)
		delete(n.bindings, key)
	case 2, 3, 4, 5, 6:
		rules := r.rules()
		p.SetRole(namespace, name, rules)
		n.roles[key] = rules
	default:
		b := naiveBinding{namespace: namespace, ref: clusterRole(r.one("1", "2", "3", "4"))}
		if r.IntN(2) == 0 {
			b.ref.Kind = "Role"
		}
		for range r.IntN(6) {
			b.subjects = append(b.subjects, someSubjects[r.IntN(len(someSubjects))])
		}
		p.SetBinding(namespace, name, b.ref, b.subjects)
		n.bindings[key] = b
	}
}

func TestPolicy_likeNaive(t *testing.T) {
	r := &random{Rand: seed(t)}
	asked, allows := 0, 0
	for round := range 40 {
		r.broad = round%20 == 0
		p, n := NewPolicy(), newNaive()
		if round%4 == 1 {
			p.rules.limit = 30 // fills the index
		}
		for range 60 {
			r.change(p, n)
			for range 20 {
				a := r.request()
				want := n.allows(a)
				allowed, reason := decide(t, p, a)
				if allowed != want {
					t.Fatalf("%+v\nof %+v: allowed %v (%s), want %v\npolicy: %+v", a, a.User, allowed, reason, want, n)
				}
				if asked++; allowed {
					allows++
				}
			}
			wants := &random{Rand: r.Rand} // broad rules have too many atoms for the naive policy
			u, namespace, rules := someCallers[r.IntN(len(someCallers))], r.one(someNamespaces...), wants.rules()
			missing := n.missing(u, namespace, rules)
			if err := p.Covers(t.Context(), u, namespace, rules); (err == nil) != (len(missing) == 0) {
				t.Fatalf("%+v in %q, rules %+v: %v\nwant missing: %s\npolicy: %+v", u, namespace, rules, err, missing, n)
			}
		}
		for key := range n.roles {
			namespace, name, _ := strings.Cut(key, "/")
			p.DeleteRole(namespace, name)
		}
		for key := range n.bindings {
			namespace, name, _ := strings.Cut(key, "/")
			p.DeleteBinding(namespace, name)
		}
		if len(p.roles)+len(p.bindings)+len(p.subjects)+len(p.absent)+len(p.rules.resources)+p.rules.names+len(p.rules.paths)+
			len(p.rules.prefixes)+len(p.rules.lengths)+len(p.rules.broad)+len(p.rules.broadPaths) > 0 {
			t.Fatalf("something is left of an empty policy: %+v, %+v", p, p.rules)
		}
	}
	t.Logf("%d requests, %d of them allowed", asked, allows)
	if allows < asked/20 || allows > asked*19/20 {
		t.Errorf("%d of %d requests allowed: too much the same to prove something", allows, asked)
	}
}

func TestPolicy_concurrent(t *testing.T) {
	p := NewPolicy()
	keep := []rbacv1.PolicyRule{resourceRule(names("get"), names(""), names("pods"))}
	p.SetRole("", "keep", keep)
	p.SetBinding("", "keep", clusterRole("keep"), []rbacv1.Subject{userSubject("kept")})
	kept := &user.DefaultInfo{Name: "kept"}
	source := seed(t)
	var changes, questions sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		r := &random{Rand: rand.New(rand.NewPCG(source.Uint64(), 0)), broad: true}
		changes.Go(func() {
			n := newNaive()
			for range 300 {
				r.change(p, n)
			}
		})
		q := &random{Rand: rand.New(rand.NewPCG(source.Uint64(), 0))}
		questions.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, err := p.Authorize(t.Context(), q.request()); err != nil {
					t.Error(err)
				}
				_, _, _, _ = p.RulesFor(t.Context(), someCallers[0], "x")
				_ = p.Covers(t.Context(), someCallers[1], "y", q.rules())
				if err := p.Covers(t.Context(), kept, "x", keep); err != nil {
					t.Error(err)
				}
			}
		})
	}
	changes.Wait()
	close(stop)
	questions.Wait()
}
