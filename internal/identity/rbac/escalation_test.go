package rbac

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const notHeld = " is attempting to grant RBAC permissions not currently held:\n"

func TestCovers(t *testing.T) {
	core, pods, all := names(""), names("pods"), names("*")
	read := resourceRule(names("get", "list"), core, pods)
	for _, test := range []struct {
		name       string
		held, want []rbacv1.PolicyRule
		missing    string // the text after notHeld
	}{
		{"nothing by nothing", nil, nil, ""},
		{"a rule by itself", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{read}, ""},
		{"a rule by nothing", nil, []rbacv1.PolicyRule{read}, `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`},
		{"a part of a rule", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(names("list"), core, pods)}, ""},
		{"a rule by parts", []rbacv1.PolicyRule{resourceRule(names("list"), core, pods), resourceRule(names("get"), core, pods)},
			[]rbacv1.PolicyRule{read}, ""},
		{"what is held is not said to be missing", []rbacv1.PolicyRule{read},
			[]rbacv1.PolicyRule{resourceRule(names("get", "watch"), core, names("pods", "nodes"))},
			`{APIGroups:[""], Resources:["nodes"], Verbs:["get" "watch"]}` + "\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}`},
		{"another group", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(names("get"), names("apps"), pods)},
			`{APIGroups:["apps"], Resources:["pods"], Verbs:["get"]}`},
		{"all verbs need all", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(all, core, pods)}, `{APIGroups:[""], ` +
			`Resources:["pods"], Verbs:["*"]}`},
		{"all groups need all", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(names("get"), all, pods)}, `{APIGroups:["*"], ` +
			`Resources:["pods"], Verbs:["get"]}`},
		{"all resources need all", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(names("get"), core, all)}, `{APIGroups:[""], ` +
			`Resources:["*"], Verbs:["get"]}`},
		{"all by all", []rbacv1.PolicyRule{resourceRule(all, all, all)},
			[]rbacv1.PolicyRule{resourceRule(all, all, all), read, resourceRule(all, all, names("*/x"))}, ""},
		{"a subresource by that of all", []rbacv1.PolicyRule{resourceRule(all, core, names("*/log"))},
			[]rbacv1.PolicyRule{resourceRule(names("get"), core, names("pods/log"))}, ""},
		{"a subresource of all needs that of all", []rbacv1.PolicyRule{resourceRule(all, core, names("pods/log"))},
			[]rbacv1.PolicyRule{resourceRule(names("get"), core, names("*/log"))},
			`{APIGroups:[""], Resources:["*/log"], Verbs:["get"]}`},
		{"a subresource is not held with its resource", []rbacv1.PolicyRule{read},
			[]rbacv1.PolicyRule{resourceRule(names("get"), core, names("pods/log"))},
			`{APIGroups:[""], Resources:["pods/log"], Verbs:["get"]}`},
		{"an object by all", []rbacv1.PolicyRule{read}, []rbacv1.PolicyRule{resourceRule(names("get"), core, pods, "a")}, ""},
		{"all objects need all", []rbacv1.PolicyRule{resourceRule(names("get"), core, pods, "a")},
			[]rbacv1.PolicyRule{resourceRule(names("get"), core, pods)},
			`{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`},
		{"all objects are not one without name", []rbacv1.PolicyRule{resourceRule(names("get"), core, pods, "")},
			[]rbacv1.PolicyRule{resourceRule(names("get"), core, pods)},
			`{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`},
		{"objects by their names", []rbacv1.PolicyRule{resourceRule(names("get"), core, pods, "a", "b")},
			[]rbacv1.PolicyRule{resourceRule(names("get", "list"), core, pods, "b", "c")},
			`{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["list"]}` + "\n" + `{APIGroups:[""], Resources:["pods"], ` +
				`ResourceNames:["c"], Verbs:["get" "list"]}`},
		{"a path by a pattern", []rbacv1.PolicyRule{{Verbs: names("get"), NonResourceURLs: names("/x/*")}},
			[]rbacv1.PolicyRule{{Verbs: names("get"), NonResourceURLs: names("/x/y", "/x/y/*")}}, ""},
		{"a pattern by a path", []rbacv1.PolicyRule{{Verbs: names("get"), NonResourceURLs: names("/x/y")}},
			[]rbacv1.PolicyRule{{Verbs: names("get", "post"), NonResourceURLs: names("/x/*")}},
			`{NonResourceURLs:["/x/*"], Verbs:["get"]}` + "\n" + `{NonResourceURLs:["/x/*"], Verbs:["post"]}`},
		{"what is missing twice is said once", nil, []rbacv1.PolicyRule{{Verbs: names("get"), NonResourceURLs: names("/", "/")}},
			`{NonResourceURLs:["/"], Verbs:["get"]}`},
		{"paths are not held with all resources", []rbacv1.PolicyRule{resourceRule(all, all, all)},
			[]rbacv1.PolicyRule{{Verbs: names("get"), NonResourceURLs: names("/")}},
			`{NonResourceURLs:["/"], Verbs:["get"]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := ""
			if test.missing != "" {
				want = `user "ann" (groups=["dev"])` + notHeld + test.missing
			}
			for _, limit := range []int{maxIndexed, 0} {
				p := NewPolicy()
				p.rules.limit = limit
				p.SetRole("", "r", test.held)
				p.SetBinding("", "b", clusterRole("r"), []rbacv1.Subject{groupSubject("dev")})
				err := p.Covers(t.Context(), &user.DefaultInfo{Name: "ann", Groups: names("dev")}, "", test.want)
				if got := text(err); got != want {
					t.Errorf("with at most %d combinations indexed: got  %s\nwant %s", limit, got, want)
				}
			}
			if missing := missingRules(test.held, test.want); (len(missing) == 0) != (test.missing == "") {
				t.Errorf("missing of the lists themselves: %+v", missing)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCovers_namespace(t *testing.T) {
	rules := []rbacv1.PolicyRule{resourceRule(names("get"), names(""), names("pods"))}
	p := NewPolicy()
	p.SetRole("x", "r", rules)
	p.SetBinding("x", "b", namespacedRole("r"), []rbacv1.Subject{userSubject("ann")})
	p.SetBinding("y", "b", namespacedRole("r"), []rbacv1.Subject{userSubject("ann")})
	ann := &user.DefaultInfo{Name: "ann"}
	missing := `user "ann" (groups=[])` + notHeld + `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
	for namespace, want := range map[string]string{
		"x": "", "": missing, "z": missing, "y": missing + `; resolution errors: [role.rbac.authorization.k8s.io "r" not found]`,
	} {
		if got := text(p.Covers(t.Context(), ann, namespace, rules)); got != want {
			t.Errorf("in %q: got %s\nwant %s", namespace, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Covers(ctx, ann, "z", rules); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestCovers_countlessCombinations(t *testing.T) {
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("x%d", i))
	}
	rules := []rbacv1.PolicyRule{resourceRule(many, many, many)}
	err := NewPolicy().Covers(t.Context(), &user.DefaultInfo{Name: "ann"}, "", rules)
	if message := text(err); len(message) > 2*mostMissing || !strings.HasSuffix(message, "\nand more") {
		t.Errorf("%d bytes, which end with %q", len(message), message[max(0, len(message)-100):])
	}
}

// onlyAllows allows one request.
type onlyAllows struct {
	authorizer.Authorizer
	verb, resource, namespace, name string
}

func (o onlyAllows) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "ann" && a.GetVerb() == o.verb && a.GetAPIGroup() == rbacv1.GroupName && a.GetAPIVersion() == "*" &&
		a.GetResource() == o.resource &&
		a.GetNamespace() == o.namespace &&
		a.GetName() == o.name &&
		a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", errors.New("unreachable")
}

func TestCheckRole(t *testing.T) {
	rules := []rbacv1.PolicyRule{resourceRule(names("get"), names(""), names("pods"))}
	ann, root, admin := &user.DefaultInfo{
		Name: "ann",
	}, &user.DefaultInfo{
		Name:   "root",
		Groups: names("system:masters"),
	}, &user.DefaultInfo{
		Name: "admin",
	}
	refusal := `user "ann" (groups=[])` + notHeld + `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
	const mustBeAdmin = "must have cluster-admin privileges to use the aggregationRule"
	p := NewPolicy()
	p.SetRole(
		"",
		"all",
		[]rbacv1.PolicyRule{resourceRule(names("*"), names("*"), names("*")), {Verbs: names("*"), NonResourceURLs: names("*")}},
	)
	p.SetBinding("", "all", clusterRole("all"), []rbacv1.Subject{userSubject("admin")})
	for _, test := range []struct {
		name  string
		a     authorizer.UnconditionalAuthorizer
		write RoleWrite
		want  string
	}{
		{"rights that are missing", nil, RoleWrite{User: ann, Namespace: "x", Name: "r", Rules: rules}, refusal},
		{"rights that are there", nil, RoleWrite{User: admin, Namespace: "x", Name: "r", Rules: rules}, ""},
		{"no rules", nil, RoleWrite{User: ann, Namespace: "x", Name: "r"}, ""},
		{"system:masters", nil, RoleWrite{User: root, Namespace: "x", Name: "r", Rules: rules}, ""},
		{"escalate", onlyAllows{verb: "escalate", resource: "roles", namespace: "x", name: "r"},
			RoleWrite{User: ann, Namespace: "x", Name: "r", Rules: rules}, ""},
		{"escalate another", onlyAllows{verb: "escalate", resource: "roles", namespace: "x", name: "s"},
			RoleWrite{User: ann, Namespace: "x", Name: "r", Rules: rules}, refusal},
		{"escalate a cluster role", onlyAllows{verb: "escalate", resource: "clusterroles", name: "r"},
			RoleWrite{User: ann, Name: "r", Rules: rules, Aggregates: true}, ""},
		{"bind is not escalate", onlyAllows{verb: "bind", resource: "roles", namespace: "x", name: "r"},
			RoleWrite{User: ann, Namespace: "x", Name: "r", Rules: rules}, refusal},
		{"aggregation", nil, RoleWrite{User: ann, Name: "r", Aggregates: true}, mustBeAdmin},
		{"aggregation with rights that are missing", nil, RoleWrite{User: ann, Name: "r", Rules: rules, Aggregates: true}, refusal},
		{"aggregation by one who may do everything", nil, RoleWrite{User: admin, Name: "r", Rules: rules, Aggregates: true}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := p.CheckRole(t.Context(), test.a, test.write)
			if got := text(err); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if refused := new(EscalationError); err != nil && !errors.As(err, &refused) {
				t.Errorf("%T is no refusal", err)
			}
		})
	}
}

func TestCheckBinding(t *testing.T) {
	rules := []rbacv1.PolicyRule{resourceRule(names("get"), names(""), names("pods"))}
	ann, root, bob := &user.DefaultInfo{
		Name: "ann",
	}, &user.DefaultInfo{
		Name:   "root",
		Groups: names("system:masters"),
	}, &user.DefaultInfo{
		Name: "bob",
	}
	refusal := `user "ann" (groups=[])` + notHeld + `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
	none := apierrors.NewNotFound(rbacv1.Resource("roles"), "r")
	p := NewPolicy()
	p.SetRole("x", "r", rules)
	p.SetBinding("x", "r", namespacedRole("r"), []rbacv1.Subject{userSubject("bob")})
	for _, test := range []struct {
		name      string
		a         authorizer.UnconditionalAuthorizer
		user      user.Info
		namespace string
		ref       rbacv1.RoleRef
		err       error // of the role
		want      string
	}{
		{"rights that are missing", nil, ann, "x", namespacedRole("r"), nil, refusal},
		{"rights that are there", nil, bob, "x", clusterRole("c"), nil, ""},
		{"rights in another namespace", nil, bob, "y", clusterRole("c"), nil, `user "bob" (groups=[])` + notHeld + `{APIGroups:[""], ` +
			`Resources:["pods"], Verbs:["get"]}`},
		{"system:masters", nil, root, "x", namespacedRole("r"), none, ""},
		{"bind a role", onlyAllows{verb: "bind", resource: "roles", namespace: "x", name: "r"}, ann, "x", namespacedRole("r"), none, ""},
		{"bind a cluster role in a namespace", onlyAllows{verb: "bind", resource: "clusterroles", namespace: "x", name: "c"}, ann, "x",
			clusterRole("c"), none, ""},
		{"bind a cluster role in another namespace", onlyAllows{verb: "bind", resource: "clusterroles", namespace: "y", name: "c"}, ann, "x",
			clusterRole("c"), nil, refusal},
		{"bind in a namespace is not bind in the cluster", onlyAllows{verb: "bind", resource: "clusterroles", namespace: "x", name: "c"}, ann,
			"", clusterRole("c"), nil, refusal},
		{"escalate is not bind", onlyAllows{verb: "escalate", resource: "roles", namespace: "x", name: "r"}, ann, "x", namespacedRole("r"),
			nil, refusal},
		{"a role that is missing", nil, bob, "x", namespacedRole("r"), none, none.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := p.CheckBinding(t.Context(), test.a, BindingWrite{
				User: test.user, Namespace: test.namespace, RoleRef: test.ref,
				Rules: func(context.Context) ([]rbacv1.PolicyRule, error) { return rules, test.err },
			})
			if got := text(err); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if refused := new(EscalationError); err != nil && errors.As(err, &refused) == apierrors.IsNotFound(err) {
				t.Errorf("%T is a refusal and an error of the role, or neither", err)
			}
		})
	}
}

func TestCheckRole_ownersMayChange(t *testing.T) {
	old := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r", Finalizers: names("x/y")}, Rules: []rbacv1.PolicyRule{{Verbs: names("get")}}}
	for _, test := range []struct {
		name   string
		change func(*rbacv1.Role)
		want   bool
	}{
		{"nothing", func(*rbacv1.Role) {}, true},
		{"the kind is named", func(r *rbacv1.Role) {
			r.TypeMeta = metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}
		}, true},
		{"finalizers", func(r *rbacv1.Role) { r.Finalizers = nil }, true},
		{"owners", func(r *rbacv1.Role) { r.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }, true},
		{"managed fields", func(r *rbacv1.Role) { r.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}} }, true},
		{"labels", func(r *rbacv1.Role) { r.Labels = map[string]string{"x": "y"} }, false},
		{"rules", func(r *rbacv1.Role) { r.Rules[0].Verbs = names("*") }, false},
	} {
		role := old.DeepCopy()
		test.change(role)
		given := role.DeepCopy()
		if got := OnlyOwnersChange(role, old); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if !reflect.DeepEqual(role, given) {
			t.Errorf("%s: the object was changed to %+v", test.name, role)
		}
	}
	if OnlyOwnersChange(&rbacv1.Role{}, nil) {
		t.Error("a create is taken for an update")
	}
}
