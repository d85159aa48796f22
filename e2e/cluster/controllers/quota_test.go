package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/internal/testing/testwait"
)

func inNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// furnish creates a namespace with two config maps, a secret and an account.
func furnish(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	core := client.CoreV1()
	if _, err := core.Namespaces().Create(t.Context(), inNamespace(namespace), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ConfigMaps(namespace).Create(t.Context(), configMap("own"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.Secrets(namespace).
		Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "own"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace is furnished", func(ctx context.Context) error {
		if _, err := core.ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := core.ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}

func printed(list corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		quantity := list[name]
		all = append(all, fmt.Sprintf("%s=%s", name, quantity.String()))
	}
	return strings.Join(all, " ")
}

var quotas = map[string]corev1.ResourceQuotaSpec{
	"config maps":        {Hard: amounts("configmaps", "count/configmaps")},
	"secrets":            {Hard: amounts("secrets", "count/secrets")},
	"accounts":           {Hard: amounts("count/serviceaccounts")},
	"quotas":             {Hard: amounts("resourcequotas", "count/resourcequotas")},
	"leases":             {Hard: amounts("count/leases.coordination.k8s.io")},
	"roles":              {Hard: amounts("count/roles.rbac.authorization.k8s.io")},
	"events":             {Hard: amounts("count/events")},
	"new events":         {Hard: amounts("count/events.events.k8s.io")},
	"without namespaces": {Hard: amounts("count/namespaces")},
	"without kind":       {Hard: amounts("count/nothings.example.com", "count/nothings")},
	"workloads": {
		Hard: amounts(
			"pods",
			"cpu",
			"memory",
			"ephemeral-storage",
			"requests.cpu",
			"limits.memory",
			"services",
			"services.nodeports",
			"services.loadbalancers",
			"replicationcontrollers",
			"persistentvolumeclaims",
			"requests.storage",
		),
	},
	"devices": {Hard: amounts("requests.example.com/gpu")},
	"storage class": {
		Hard: amounts("gold.storageclass.storage.k8s.io/requests.storage", "gold.storageclass.storage.k8s.io/persistentvolumeclaims"),
	},
	"scope": {Hard: amounts("pods"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}},
	"scope of a count": {
		Hard: amounts("count/configmaps"),
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpExists},
		}},
	},
	"nothing": {},
}

func amounts(names ...corev1.ResourceName) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range names {
		list[name] = resource.MustParse("20")
	}
	return list
}

func TestQuota_status(t *testing.T) {
	servers := both(t)
	number := 0
	for name, spec := range quotas {
		number++
		namespace := fmt.Sprint("status-", number)
		t.Run(name, func(t *testing.T) {
			for _, client := range servers {
				furnish(t, client, namespace)
			}
			said := statusOf(t, servers["annex"], namespace, spec)
			// kube-controller-manager counts by informers, once; objects that they have not seen by then are counted
			// minutes later. So the test uses further quotas until they have.
			testwait.NoError(t, "both say the same", func(ctx context.Context) error {
				if kube := statusOf(t, servers["kube"], namespace, spec); kube != said {
					return fmt.Errorf("kube says  %s\nannex says %s", kube, said)
				}
				return nil
			})
		})
	}
}

// statusOf creates a quota, and returns its status once it is computed.
func statusOf(t *testing.T, client kubernetes.Interface, namespace string, spec corev1.ResourceQuotaSpec) string {
	t.Helper()
	quotas := client.CoreV1().ResourceQuotas(namespace)
	if _, err := quotas.Create(
		t.Context(),
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: spec},
		metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	if len(spec.Hard) == 0 {
		return "" // nothing reveals that its status is computed
	}
	said := ""
	testwait.NoError(t, "the status is known", func(ctx context.Context) error {
		q, err := quotas.Get(ctx, "q", metav1.GetOptions{})
		if err == nil && q.Status.Hard == nil {
			err = errors.New("there is no status yet")
		}
		if err == nil {
			said = "hard " + printed(q.Status.Hard) + " used " + printed(q.Status.Used)
		}
		return err
	})
	if err := quotas.Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return said
}

// Both servers reject the same requests by quota, with the same messages.
func TestQuota_rejections(t *testing.T) {
	said := map[string][]string{}
	for server, client := range both(t) {
		core := client.CoreV1()
		furnish(t, client, "refused")
		say := func(_ any, err error) {
			said[server] = append(said[server], fmt.Sprint(err))
		}
		for name, hard := range map[string]corev1.ResourceList{
			"a": {"configmaps": resource.MustParse("2"), "count/configmaps": resource.MustParse("2"),
				"count/serviceaccounts": resource.MustParse("9")},
			"b": {"configmaps": resource.MustParse("3"), "count/secrets": resource.MustParse("1")},
		} {
			q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
			if _, err := core.ResourceQuotas("refused").Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// A dry-run write reveals when admission knows the quotas.
		testwait.NoError(t, server+" enforces quotas", func(ctx context.Context) error {
			_, err := core.ConfigMaps("refused").Create(ctx, configMap("new"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil {
				return errors.New("it lets a config map through")
			}
			if _, err = core.Secrets("refused").
				Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
				return errors.New("it lets a secret through")
			}
			return nil
		})
		say(core.ConfigMaps("refused").Create(t.Context(), configMap("new"), metav1.CreateOptions{}))
		say(core.ConfigMaps("refused").Create(t.Context(), configMap("own"), metav1.CreateOptions{}))
		say(core.Secrets("refused").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}))
		say(
			core.ServiceAccounts("refused").
				Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}),
		)
	}
	if !slices.Equal(said["kube"], said["annex"]) {
		t.Errorf("kube says\n%s\nannex says\n%s", strings.Join(said["kube"], "\n"), strings.Join(said["annex"], "\n"))
	}
}

func TestNamespace_defaultObjects(t *testing.T) {
	said := map[string]string{}
	for server, client := range both(t) {
		furnish(t, client, "furnished")
		ca, err := client.CoreV1().ConfigMaps("furnished").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		account, err := client.CoreV1().ServiceAccounts("furnished").Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		said[server] = fmt.Sprint(
			ca.Annotations,
			ca.Labels,
			slices.Sorted(maps.Keys(ca.Data)),
			ca.Immutable,
			account.Annotations,
			account.Labels,
			account.Secrets,
			account.AutomountServiceAccountToken,
		)
	}
	if said["kube"] != said["annex"] {
		t.Errorf("kube has  %s\nannex has %s", said["kube"], said["annex"])
	}
}
