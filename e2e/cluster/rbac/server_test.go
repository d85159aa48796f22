package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// wardleGroup is the group of the server's own kinds, which kube-apiserver does not have.
const wardleGroup = "wardle.example.com"

// complete copies to the server the objects that kube-apiserver creates at its start and the server does not, and
// returns their number.
func complete(t *testing.T, own *kubernetes.Clientset) int {
	t.Helper()
	ctx, from, to, n := t.Context(), admin.RbacV1(), own.RbacV1(), 0
	given := func(_ any, err error) {
		t.Helper()
		if err == nil {
			n++
		} else if !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	clusterRoles, err := from.ClusterRoles().List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterRoles.Items {
		role := &rbacv1.ClusterRole{ObjectMeta: plain(o.ObjectMeta), Rules: o.Rules, AggregationRule: o.AggregationRule}
		given(to.ClusterRoles().Create(ctx, role, metav1.CreateOptions{}))
	}
	clusterBindings, err := from.ClusterRoleBindings().List(ctx, bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range clusterBindings.Items {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: plain(o.ObjectMeta), RoleRef: o.RoleRef, Subjects: o.Subjects}
		given(to.ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}))
	}
	return n
}

// bindAll binds each bootstrap ClusterRole to a user of its own, in all servers.
func bindAll(t *testing.T, clients ...*kubernetes.Clientset) map[*user.DefaultInfo]rbacv1.ClusterRole {
	t.Helper()
	roles, err := admin.RbacV1().ClusterRoles().List(t.Context(), bootstrapped)
	if err != nil {
		t.Fatal(err)
	}
	bound := map[*user.DefaultInfo]rbacv1.ClusterRole{}
	for i, role := range roles.Items {
		u := &user.DefaultInfo{Name: "rbac-has-" + strings.ReplaceAll(role.Name, ":", "-")}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("rbac-has-%d", i)},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: u.Name}},
		}
		for _, client := range clients {
			if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		bound[u] = role
	}
	return bound
}

// aggregatedAlike waits until both servers have aggregated the same rules.
func aggregatedAlike(t *testing.T, own *kubernetes.Clientset) {
	t.Helper()
	rules := func(ctx context.Context, client *kubernetes.Clientset, name string) ([]rbacv1.PolicyRule, error) {
		role, err := client.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Equal(r.APIGroups, []string{wardleGroup}) }), nil
	}
	for _, name := range []string{"view", "edit", "admin"} {
		testwait.NoError(t, name+" has the same rules", func(ctx context.Context) error {
			theirs, err := rules(ctx, admin, name)
			if err != nil {
				return err
			}
			ours, err := rules(ctx, own, name)
			if err != nil {
				return err
			}
			if !equality.Semantic.DeepEqual(ours, theirs) {
				return errors.New("they differ")
			}
			return nil
		})
	}
}

// sameBootstrapRoles compares the rights of each bootstrap ClusterRole, rule by rule, and some beyond them.
func sameBootstrapRoles(t *testing.T, r random, own *kubernetes.Clientset, bound map[*user.DefaultInfo]rbacv1.ClusterRole) {
	asked, allowed := 0, 0
	ask := func(a authorizer.AttributesRecord) {
		asked++
		if ok, _ := sameAnswer(t, own, a); ok {
			allowed++
		}
	}
	for u, role := range bound {
		for _, rule := range role.Rules {
			for _, verb := range []string{r.one(rule.Verbs), "other"} {
				for _, path := range rule.NonResourceURLs {
					ask(authorizer.AttributesRecord{User: u, Verb: verb, Path: path})
				}
				if len(rule.Resources) == 0 {
					continue
				}
				for _, group := range append(slices.Clone(rule.APIGroups), "other.io") {
					a := authorizer.AttributesRecord{
						User:            u,
						ResourceRequest: true,
						Verb:            verb,
						APIGroup:        group,
						Namespace:       r.one(append([]string{""}, namespaces...)),
						Name:            "a",
					}
					a.Resource, a.Subresource, _ = strings.Cut(r.one(rule.Resources), "/")
					if len(rule.ResourceNames) > 0 && r.IntN(2) == 0 {
						a.Name = r.one(rule.ResourceNames)
					}
					ask(a)
				}
			}
		}
	}
	t.Logf("%d questions about %d roles, %d are allowed", asked, len(bound), allowed)
	if len(bound) < 60 || allowed < asked/10 || allowed > asked*9/10 {
		t.Error("too few, or too much the same, to prove something")
	}
}
