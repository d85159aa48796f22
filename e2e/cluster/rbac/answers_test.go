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

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// writers may write roles and bindings, but only grant rights that they have.
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

// fill creates the same random roles and bindings in several servers. Some refer to roles that do not exist.
func fill(t *testing.T, r random, clients ...*kubernetes.Clientset) {
	t.Helper()
	ctx := t.Context()
	each := func(create func(client *kubernetes.Clientset) error) {
		t.Helper()
		for _, client := range clients {
			if err := create(client); err != nil {
				t.Fatal(err)
			}
		}
	}
	clusterRole := func(o *rbacv1.ClusterRole) {
		t.Helper()
		each(func(client *kubernetes.Clientset) error {
			_, err := client.RbacV1().ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
			return err
		})
	}
	clusterBinding := func(o *rbacv1.ClusterRoleBinding) {
		t.Helper()
		each(func(client *kubernetes.Clientset) error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
			return err
		})
	}
	for i := range 8 {
		clusterRole(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rbac-%d", i)}, Rules: r.rules(false)})
		b := r.binding(fmt.Sprintf("rbac-%d", i), "")
		if i < 4 {
			clusterBinding(&rbacv1.ClusterRoleBinding{ObjectMeta: b.ObjectMeta, RoleRef: b.RoleRef, Subjects: b.Subjects})
		}
	}
	for _, namespace := range namespaces {
		each(func(client *kubernetes.Clientset) error {
			_, err := client.CoreV1().
				Namespaces().
				Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
			return err
		})
		for i := range 8 {
			role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rbac-%d", i)}, Rules: r.rules(true)}
			each(func(client *kubernetes.Clientset) error {
				_, err := client.RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{})
				return err
			})
			b := r.binding(fmt.Sprintf("rbac-%d", i), namespace)
			each(func(client *kubernetes.Clientset) error {
				_, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &b, metav1.CreateOptions{})
				return err
			})
		}
	}
	clusterRole(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: writers}, Rules: []rbacv1.PolicyRule{
		{
			Verbs:     []string{"create", "update"},
			APIGroups: []string{rbacv1.GroupName},
			Resources: []string{"clusterroles", "roles", "clusterrolebindings", "rolebindings"},
		},
	}})
	clusterBinding(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: writers}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: writers},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: writers}},
	})
}

// load returns the policy of all objects in the cluster, and the rules of its roles by namespace/name.
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

// authenticated returns the caller after an impersonation.
func authenticated(u *user.DefaultInfo) *user.DefaultInfo {
	return &user.DefaultInfo{Name: u.Name, Groups: append(slices.Clone(u.Groups), user.AllAuthenticated)}
}

// as returns the client of a caller whom the administrator with the configuration impersonates.
func as(t *testing.T, config *rest.Config, u *user.DefaultInfo) *kubernetes.Clientset {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: u.Name, Groups: u.Groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Whatever the roles and bindings, a server decides, explains and rejects like kube-apiserver, with the same
// messages. All objects that kube-apiserver creates at its start exist: the server creates some of them, and the test
// the rest.
func TestRBAC_randomPolicies(t *testing.T) {
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
	config := alone.Serve(t)
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	given := complete(t, own)
	bound := bindAll(t, admin, own)
	fill(t, r, admin, own)
	p, rules := load(t)
	for name, client := range map[string]*kubernetes.Clientset{"kube-apiserver": admin, "the server": own} {
		testwait.NoError(t, name+" has seen the last binding", func(ctx context.Context) error {
			u := callers[len(callers)-1]
			status, err := review(
				ctx,
				client,
				authorizer.AttributesRecord{User: u, Verb: "create", APIGroup: rbacv1.GroupName, Resource: "roles", ResourceRequest: true},
			)
			if err == nil && !status.Allowed {
				err = fmt.Errorf("%+v", status)
			}
			return err
		})
	}
	aggregatedAlike(t, own)
	t.Logf("the server was given %d objects besides its own", given)
	t.Run("Decisions", func(t *testing.T) { sameDecisions(t, r, own) })
	t.Run("BootstrapRoles", func(t *testing.T) { sameBootstrapRoles(t, r, own, bound) })
	t.Run("Rules", func(t *testing.T) {
		sameRules(t, config, append(slices.Clone(callers), slices.Collect(maps.Keys(bound))...))
	})
	t.Run("Escalation", func(t *testing.T) { sameEscalation(t, r, p, rules) })
}

func review(
	ctx context.Context,
	client *kubernetes.Clientset,
	a authorizer.AttributesRecord,
) (*authorizationv1.SubjectAccessReviewStatus, error) {
	sar := &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: a.User.GetName(), Groups: a.User.GetGroups()},
	}
	if a.ResourceRequest {
		sar.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace: a.Namespace, Verb: a.Verb, Group: a.APIGroup, Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
		}
	} else {
		sar.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
	}
	answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &answer.Status, nil
}

// sameAnswer asks both servers, and returns whether they allow the request, and whether their reasons are identical.
func sameAnswer(t *testing.T, own *kubernetes.Clientset, a authorizer.AttributesRecord) (allowed, sameReason bool) {
	t.Helper()
	theirs, err := review(t.Context(), admin, a)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := review(t.Context(), own, a)
	if err != nil {
		t.Fatal(err)
	}
	if ours.Allowed != theirs.Allowed || ours.Denied != theirs.Denied || (ours.EvaluationError == "") != (theirs.EvaluationError == "") {
		t.Fatalf("%+v of %+v: %+v\nkube-apiserver: %+v", a, a.User, ours, theirs)
	}
	for _, status := range []*authorizationv1.SubjectAccessReviewStatus{ours, theirs} {
		status.Reason = strings.TrimPrefix(status.Reason, "rbac: ") // its configuration names the authorizer
	}
	// Health and the version are open before roles are evaluated.
	opened := ours.Reason == "" && ours.Allowed && openPath.MatchString(a.Path)
	if plainReason(ours.Reason) != plainReason(theirs.Reason) && !opened {
		t.Errorf("%+v of %+v: the reason is %s\nkube-apiserver's: %s", a, a.User, ours.Reason, theirs.Reason)
	}
	return theirs.Allowed, ours.Reason == theirs.Reason
}

var openPath = regexp.MustCompile(`^/(version/?|(healthz|livez|readyz)(/.*)?)$`)

func sameDecisions(t *testing.T, r random, own *kubernetes.Clientset) {
	allowed, sameReason := 0, 0
	const asked = 2000
	for range asked {
		a := authorizer.AttributesRecord{User: callers[r.IntN(len(callers))], Verb: r.one(verbs)}
		if r.IntN(4) == 0 {
			a.Path = r.one(append([]string{"/z", "/xyz"}, paths...))
		} else {
			a.ResourceRequest, a.APIGroup, a.Name = true, r.one(groups), r.one(append([]string{"c"}, objects...))
			a.Namespace = r.one(append([]string{""}, namespaces...))
			a.Resource, a.Subresource, _ = strings.Cut(r.one(resources), "/")
		}
		allows, same := sameAnswer(t, own, a)
		if allows {
			allowed++
		}
		if same {
			sameReason++
		}
	}
	t.Logf("%d decisions, %d of them allow, %d with the very reason", asked, allowed, sameReason)
	if allowed < asked/20 || allowed > asked*19/20 || sameReason < asked/2 {
		t.Error("too much the same, or too different, to prove something")
	}
}

// plainReason returns a reason without the parts that depend on the order of bindings, which kube-apiserver does not
// define: the allowing binding, and the order of missing roles.
func plainReason(reason string) string {
	if missing, refused := strings.CutPrefix(reason, "RBAC: ["); refused {
		roles := strings.Split(strings.TrimSuffix(missing, "]"), ", ")
		slices.Sort(roles)
		return "RBAC: [" + strings.Join(roles, ", ") + "]"
	}
	return bindingName.ReplaceAllString(reason, "allowed by a binding")
}

var bindingName = regexp.MustCompile(
	`allowed by (Cluster)?RoleBinding "[^"]+" of (Cluster)?Role "[^"]+" to (User|Group|ServiceAccount) "[^"]+"$`,
)

// sameRules compares the rules that callers get about themselves.
func sameRules(t *testing.T, config *rest.Config, all []*user.DefaultInfo) {
	told := 0
	for _, u := range all {
		for _, namespace := range namespaces {
			question := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
			ask := func(config *rest.Config) (*authorizationv1.SubjectRulesReviewStatus, []string) {
				answer, err := as(t, config, u).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), question, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return &answer.Status, rulesOf(&answer.Status)
			}
			theirs, theirRules := ask(host.Admin())
			ours, ourRules := ask(config)
			told += len(ourRules)
			if !slices.Equal(ourRules, theirRules) || ours.Incomplete != theirs.Incomplete ||
				(ours.EvaluationError == "") != (theirs.EvaluationError == "") {
				t.Errorf(
					"%s in %s: %d rules, %v, %s\n%s\nkube-apiserver: %d rules, %v, %s\n%s",
					u.Name,
					namespace,
					len(ourRules),
					ours.Incomplete,
					ours.EvaluationError,
					strings.Join(ourRules, "\n"),
					len(theirRules),
					theirs.Incomplete,
					theirs.EvaluationError,
					strings.Join(theirRules, "\n"),
				)
			}
		}
	}
	t.Logf("%d callers in %d namespaces are told %d rules", len(all), len(namespaces), told)
}

func rulesOf(status *authorizationv1.SubjectRulesReviewStatus) []string {
	var all []string
	for _, rule := range status.ResourceRules {
		if slices.Equal(rule.APIGroups, []string{wardleGroup}) {
			continue // of the server's own kinds, which kube-apiserver does not have
		}
		all = append(all, fmt.Sprintf("%q", [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames}))
	}
	for _, rule := range status.NonResourceRules {
		all = append(all, fmt.Sprintf("%q", [][]string{rule.Verbs, rule.NonResourceURLs}))
	}
	slices.Sort(all)
	return all
}

func sameEscalation(t *testing.T, r random, p *rbac.Policy, rules map[string][]rbacv1.PolicyRule) {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	said := map[string]int{}
	for _, u := range callers {
		if !slices.Contains(u.Groups, writers) {
			continue
		}
		client, caller := as(t, host.Admin(), u).RbacV1(), authenticated(u)
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
						role.AggregationRule = &rbacv1.AggregationRule{
							ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}},
						}
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
					_, theirs = client.ClusterRoleBindings().
						Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: b.RoleRef, Subjects: b.Subjects}, dry)
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

// missingRole matches the name of a missing role, for which kube-apiserver uses the resource of the request, and we
// the role's.
var missingRole = regexp.MustCompile(`(cluster)?role(binding)?s?\.rbac\.authorization\.k8s\.io ("[^"]*") not found`)

// plainRefusal returns a rejection with the names of missing roles sorted, because kube-apiserver defines no order.
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
