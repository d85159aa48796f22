package rbac

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/rbac"
	"github.com/annexapi/annex/internal/testwait"
)

// writers may write roles and bindings, as far as they hold what these give.
const writers = "rbac-writers"

var (
	namespaces = []string{"rbac-x", "rbac-y"}
	callers    = []*user.DefaultInfo{
		{Name: "rbac-ann"}, {Name: "rbac-bob", Groups: []string{"rbac-dev", writers}}, {Name: "rbac-eve", Groups: []string{writers}},
		{Name: "system:serviceaccount:rbac-x:robot", Groups: []string{"system:serviceaccounts", writers}},
		{Name: "system:serviceaccount:rbac-y:robot", Groups: []string{"rbac-dev", writers}},
	}
	subjects = []rbacv1.Subject{
		{Kind: "User", Name: "rbac-ann"}, {Kind: "User", Name: "rbac-bob"}, {Kind: "User", Name: "rbac-eve"}, {Kind: "Group", Name: "rbac-dev"},
		{Kind: "ServiceAccount", Namespace: "rbac-x", Name: "robot"}, {Kind: "ServiceAccount", Namespace: "rbac-y", Name: "robot"},
	}
	verbs     = []string{"get", "list", "create", "delete", "*"}
	groups    = []string{"", "apps", "example.com", "*"}
	resources = []string{"pods", "pods/log", "things", "things/scale", "*/scale", "*/log", "nodes", "pods/*", "*"}
	objects   = []string{"a", "b", ""}
	paths     = []string{"/x", "/x/*", "/x/y", "/x*", "/xy**", "/*", "*"}
)

type random struct{ *rand.Rand }

func (r random) one(values []string) string { return values[r.IntN(len(values))] }

func (r random) some(values []string) (chosen []string) {
	for range 1 + r.IntN(3) {
		chosen = append(chosen, r.one(values))
	}
	return chosen
}

func (r random) rules(namespaced bool) (rules []rbacv1.PolicyRule) {
	for range 1 + r.IntN(4) {
		rule := rbacv1.PolicyRule{Verbs: r.some(verbs)}
		if !namespaced && r.IntN(4) == 0 {
			rule.NonResourceURLs = r.some(paths)
		} else {
			rule.APIGroups, rule.Resources = r.some(groups), r.some(resources)
			if r.IntN(3) == 0 {
				rule.ResourceNames = r.some(objects)
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func (r random) binding(name, namespace string) rbacv1.RoleBinding {
	b := rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: fmt.Sprintf("rbac-%d", r.IntN(10))},
	}
	if namespace != "" && r.IntN(2) == 0 {
		b.RoleRef.Kind = "Role"
	}
	for range 1 + r.IntN(3) {
		b.Subjects = append(b.Subjects, subjects[r.IntN(len(subjects))])
	}
	if namespace != "" && r.IntN(3) == 0 {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: "robot", Namespace: namespace})
	}
	return b
}

// fill makes random roles and bindings, of which some refer to roles that do not exist.
func fill(t *testing.T, r random) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, client := t.Context(), admin.RbacV1()
	for i := range 8 {
		must(client.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rbac-%d", i)}, Rules: r.rules(false)}, metav1.CreateOptions{}))
		b := r.binding(fmt.Sprintf("rbac-%d", i), "")
		if i < 4 {
			must(client.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: b.ObjectMeta, RoleRef: b.RoleRef, Subjects: b.Subjects}, metav1.CreateOptions{}))
		}
	}
	for _, namespace := range namespaces {
		must(admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))
		for i := range 8 {
			must(client.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rbac-%d", i)}, Rules: r.rules(true)}, metav1.CreateOptions{}))
			b := r.binding(fmt.Sprintf("rbac-%d", i), namespace)
			must(client.RoleBindings(namespace).Create(ctx, &b, metav1.CreateOptions{}))
		}
	}
	must(client.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: writers}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"create", "update"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"}},
	}}, metav1.CreateOptions{}))
	must(client.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: writers}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: writers},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: writers}},
	}, metav1.CreateOptions{}))
}

// load is the policy of all objects in the cluster, and the rules of its roles by namespace/name.
func load(t *testing.T) (*rbac.Policy, map[string][]rbacv1.PolicyRule) {
	t.Helper()
	ctx, client, p, rules := t.Context(), admin.RbacV1(), rbac.NewPolicy(), map[string][]rbacv1.PolicyRule{}
	clusterRoles, err := client.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterRoles.Items {
		p.SetRole("", o.Name, o.Rules)
		rules["/"+o.Name] = o.Rules
	}
	roles, err := client.Roles("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range roles.Items {
		p.SetRole(o.Namespace, o.Name, o.Rules)
		rules[o.Namespace+"/"+o.Name] = o.Rules
	}
	clusterBindings, err := client.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterBindings.Items {
		p.SetBinding("", o.Name, o.RoleRef, o.Subjects)
	}
	bindings, err := client.RoleBindings("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range bindings.Items {
		p.SetBinding(o.Namespace, o.Name, o.RoleRef, o.Subjects)
	}
	return p, rules
}

// authenticated is the caller as an impersonation makes it.
func authenticated(u *user.DefaultInfo) *user.DefaultInfo {
	return &user.DefaultInfo{Name: u.Name, Groups: append(slices.Clone(u.Groups), user.AllAuthenticated)}
}

func as(t *testing.T, u *user.DefaultInfo) *kubernetes.Clientset {
	t.Helper()
	config := host.Admin()
	config.Impersonate = rest.ImpersonationConfig{UserName: u.Name, Groups: u.Groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Whatever the roles and bindings, a policy decides and refuses as kube-apiserver does, in the same words.
func TestAnswersAreThoseOfKubeAPIServer(t *testing.T) {
	seed := rand.Uint64()
	if fixed := os.Getenv("ANNEX_RBAC_SEED"); fixed != "" {
		var err error
		if seed, err = strconv.ParseUint(fixed, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed: ANNEX_RBAC_SEED=%d", seed)
	r := random{rand.New(rand.NewPCG(seed, 0))}
	settled(t)
	fill(t, r)
	p, rules := load(t)
	testwait.NoError(t, "kube-apiserver has seen the last binding", func(ctx context.Context) error {
		u := callers[len(callers)-1]
		status, err := review(ctx, authorizer.AttributesRecord{User: u, Verb: "create", APIGroup: rbacv1.GroupName, Resource: "roles", ResourceRequest: true})
		if err == nil && !status.Allowed {
			err = fmt.Errorf("%+v", status)
		}
		return err
	})
	t.Run("Decisions", func(t *testing.T) { sameDecisions(t, r, p) })
	t.Run("Rules", func(t *testing.T) { sameRules(t, p) })
	t.Run("Escalation", func(t *testing.T) { sameEscalation(t, r, p, rules) })
}

func review(ctx context.Context, a authorizer.AttributesRecord) (*authorizationv1.SubjectAccessReviewStatus, error) {
	sar := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: a.User.GetName(), Groups: a.User.GetGroups()}}
	if a.ResourceRequest {
		sar.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace: a.Namespace, Verb: a.Verb, Group: a.APIGroup, Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
		}
	} else {
		sar.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
	}
	answer, err := admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &answer.Status, nil
}

func sameDecisions(t *testing.T, r random, p *rbac.Policy) {
	allowed, sameReason := 0, 0
	const asked = 1500
	for range asked {
		a := authorizer.AttributesRecord{User: callers[r.IntN(len(callers))], Verb: r.one(verbs)}
		if r.IntN(4) == 0 {
			a.Path = r.one(append([]string{"/z", "/xyz"}, paths...))
		} else {
			a.ResourceRequest, a.APIGroup, a.Name = true, r.one(groups), r.one(append([]string{"c"}, objects...))
			a.Namespace = r.one(append([]string{""}, namespaces...))
			a.Resource, a.Subresource, _ = strings.Cut(r.one(resources), "/")
		}
		theirs, err := review(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		decision, reason, err := p.Authorize(t.Context(), a)
		if err != nil || (decision == authorizer.DecisionAllow) != theirs.Allowed {
			t.Fatalf("%+v: %v %s %v\nkube-apiserver: %+v", a, decision, reason, err, theirs)
		}
		theirs.Reason = strings.TrimPrefix(theirs.Reason, "rbac: ") // what its configuration calls the authorizer
		if plainReason(reason) != plainReason(theirs.Reason) {
			t.Errorf("%+v: the reason is %s\nkube-apiserver's: %s", a, reason, theirs.Reason)
		}
		if theirs.Allowed {
			allowed++
		}
		if reason == theirs.Reason {
			sameReason++
		}
	}
	t.Logf("%d decisions, %d of them allow, %d with the very reason", asked, allowed, sameReason)
	if allowed < asked/20 || allowed > asked*19/20 || sameReason < asked/2 {
		t.Error("too much the same, or too different, to prove something")
	}
}

// plainReason is a reason without what depends on the order of bindings, of which kube-apiserver has none: which of them
// allows, and which role that is missing comes first.
func plainReason(reason string) string {
	if missing, refused := strings.CutPrefix(reason, "RBAC: ["); refused {
		roles := strings.Split(strings.TrimSuffix(missing, "]"), ", ")
		slices.Sort(roles)
		return "RBAC: [" + strings.Join(roles, ", ") + "]"
	}
	return bindingName.ReplaceAllString(reason, "allowed by a binding")
}

var bindingName = regexp.MustCompile(`allowed by (Cluster)?RoleBinding "[^"]+" of (Cluster)?Role "[^"]+" to (User|Group|ServiceAccount) "[^"]+"$`)

func sameRules(t *testing.T, p *rbac.Policy) {
	for _, u := range callers {
		client := as(t, u)
		for _, namespace := range namespaces {
			answer, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
				Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			resources, paths, incomplete, err := p.RulesFor(t.Context(), authenticated(u), namespace)
			var ours, theirs []string
			for _, rule := range resources {
				ours = append(ours, fmt.Sprintf("%q", [][]string{rule.GetVerbs(), rule.GetAPIGroups(), rule.GetResources(), rule.GetResourceNames()}))
			}
			for _, rule := range paths {
				ours = append(ours, fmt.Sprintf("%q", [][]string{rule.GetVerbs(), rule.GetNonResourceURLs()}))
			}
			for _, rule := range answer.Status.ResourceRules {
				theirs = append(theirs, fmt.Sprintf("%q", [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames}))
			}
			for _, rule := range answer.Status.NonResourceRules {
				theirs = append(theirs, fmt.Sprintf("%q", [][]string{rule.Verbs, rule.NonResourceURLs}))
			}
			slices.Sort(ours)
			slices.Sort(theirs)
			if !slices.Equal(ours, theirs) || incomplete != answer.Status.Incomplete || (err != nil) != (answer.Status.EvaluationError != "") {
				t.Errorf("%s in %s: %d rules, %v, %v\n%s\nkube-apiserver: %d rules, %v, %s\n%s", u.Name, namespace, len(ours), incomplete, err, strings.Join(ours, "\n"),
					len(theirs), answer.Status.Incomplete, answer.Status.EvaluationError, strings.Join(theirs, "\n"))
			}
		}
	}
}

func sameEscalation(t *testing.T, r random, p *rbac.Policy, rules map[string][]rbacv1.PolicyRule) {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	said := map[string]int{}
	for _, u := range callers {
		if !slices.Contains(u.Groups, writers) {
			continue
		}
		client, caller := as(t, u).RbacV1(), authenticated(u)
		for range 60 {
			var theirs, ours error
			namespace, meta := r.one(append([]string{""}, namespaces...)), metav1.ObjectMeta{Name: "rbac-new"}
			meta.Namespace = namespace
			if r.IntN(2) == 0 {
				wanted := r.rules(namespace != "")
				write := rbac.RoleWrite{User: caller, Namespace: namespace, Rules: wanted}
				if namespace != "" {
					_, theirs = client.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: wanted}, dry)
				} else {
					role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: wanted}
					if write.Aggregates = r.IntN(3) == 0; write.Aggregates {
						role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}}
						if r.IntN(2) == 0 {
							role.Rules, write.Rules = nil, nil
						}
					}
					_, theirs = client.ClusterRoles().Create(t.Context(), role, dry)
				}
				ours = p.CheckRole(t.Context(), p, write)
			} else {
				b := r.binding(meta.Name, namespace)
				if namespace != "" {
					_, theirs = client.RoleBindings(namespace).Create(t.Context(), &b, dry)
				} else {
					_, theirs = client.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: b.RoleRef, Subjects: b.Subjects}, dry)
				}
				ours = p.CheckBinding(t.Context(), p, rbac.BindingWrite{
					User: caller, Namespace: namespace, RoleRef: b.RoleRef,
					Rules: func(context.Context) ([]rbacv1.PolicyRule, error) {
						key, resource := "/"+b.RoleRef.Name, "clusterroles"
						if b.RoleRef.Kind == "Role" {
							key, resource = namespace+key, "roles"
						}
						if found, ok := rules[key]; ok {
							return found, nil
						}
						return nil, apierrors.NewNotFound(rbacv1.Resource(resource), b.RoleRef.Name)
					},
				})
			}
			got, want := message(ours), message(theirs)
			if _, refused, ok := strings.Cut(want, " is forbidden: "); ok {
				want = refused
			}
			if plainRefusal(got) != plainRefusal(want) {
				t.Errorf("%s in %q: %s\nkube-apiserver: %s", u.Name, namespace, got, want)
			}
			said[kind(want)]++
		}
	}
	t.Log(said)
	if kinds := slices.Sorted(maps.Keys(said)); !slices.Equal(kinds, []string{"admin", "allowed", "missing", "refused"}) {
		t.Errorf("there were only %v: too few to prove something", kinds)
	}
}

func message(err error) string {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return ""
	case errors.As(err, &status):
		return status.Status().Message
	}
	return err.Error()
}

// missingRole is what kube-apiserver calls after the resource of the request here, and we after the role's.
var missingRole = regexp.MustCompile(`(cluster)?role(binding)?s?\.rbac\.authorization\.k8s\.io ("[^"]*") not found`)

// plainRefusal is a refusal with names of roles that are missing in order, for kube-apiserver has none.
func plainRefusal(refusal string) string {
	text, errs, _ := strings.Cut(missingRole.ReplaceAllString(refusal, "role $3 not found"), "; resolution errors: [")
	missing := strings.Split(strings.Trim(errs, "[]"), ", ")
	slices.Sort(missing)
	return text + "; " + strings.Join(slices.Compact(missing), ", ")
}

func kind(refusal string) string {
	switch {
	case refusal == "":
		return "allowed"
	case strings.HasSuffix(refusal, "not found") && !strings.Contains(refusal, "\n"):
		return "missing"
	case strings.HasPrefix(refusal, "must have cluster-admin"):
		return "admin"
	}
	return "refused"
}
