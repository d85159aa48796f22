package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// recorded starts a server, and returns its audit events of service accounts in kube-system as "ACCOUNT VERB
// RESOURCE CODE".
func recorded(t *testing.T) (kubernetes.Interface, func() (map[string]bool, error)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	options := annex.Options{Storage: memory.Storage()}
	options.Audit.Log.Path = file
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), options))
	return client, func() (map[string]bool, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all := map[string]bool{}
		for lines := bufio.NewScanner(bytes.NewReader(data[:bytes.LastIndexByte(data, '\n')+1])); lines.Scan(); {
			var e auditv1.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, fmt.Errorf("%s: %w", lines.Text(), err)
			}
			account, ok := strings.CutPrefix(e.User.Username, "system:serviceaccount:kube-system:")
			if !ok || e.ObjectRef == nil || e.ResponseStatus == nil {
				continue
			}
			resource := strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
			all[fmt.Sprintf("%s %s %s %d", account, e.Verb, resource, e.ResponseStatus.Code)] = true
		}
		return all, nil
	}
}

func TestControllers_accounts(t *testing.T) {
	t.Parallel()
	client, audit := recorded(t)
	core, ctx := client.CoreV1(), t.Context()
	if _, err := core.Namespaces().Create(ctx, namespace("lab"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace has what all have", published(client, "lab"))
	owner, err := core.ConfigMaps("lab").Create(ctx, configMap("owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := configMap("owned")
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	if _, err := core.ConfigMaps("lab").Create(ctx, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.ConfigMaps("lab").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ResourceQuotas("lab").Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{
			Name: "limits",
		},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"configmaps": resource.MustParse("20")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AdmissionregistrationV1().
		ValidatingAdmissionPolicies().
		Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "checked"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{
					ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps}},
				},
				Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
			},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.StoragemigrationV1().StorageVersionMigrations().Create(ctx, &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "roles"},
		Spec: storagemigrationv1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the migration has succeeded", func(ctx context.Context) error {
		m, err := client.StoragemigrationV1().StorageVersionMigrations().Get(ctx, "roles", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range m.Status.Conditions {
			if c.Type == string(storagemigrationv1.MigrationSucceeded) && c.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%v", m.Status.Conditions)
	})
	for _, want := range []string{
		"service-account-controller create serviceaccounts 201",
		"root-ca-cert-publisher create configmaps 201",
		"generic-garbage-collector delete configmaps 200",
		"resourcequota-controller update resourcequotas/status 200",
		"validatingadmissionpolicy-status-controller patch validatingadmissionpolicies/status 200",
		"storage-version-migrator-controller patch clusterroles 200",
		"storage-version-migrator-controller update storageversionmigrations/status 200",
	} {
		testwait.NoError(t, want, func(context.Context) error {
			all, err := audit()
			if err == nil && !all[want] {
				err = fmt.Errorf("there are %v", all)
			}
			return err
		})
	}
	all, err := audit()
	if err != nil {
		t.Fatal(err)
	}
	for event := range all {
		if strings.HasSuffix(event, fmt.Sprint(" ", http.StatusForbidden)) {
			t.Errorf("refused: %s", event)
		}
	}
}

func TestControllers_roleReturns(t *testing.T) {
	t.Parallel()
	client, audit := recorded(t)
	ctx, bindings := t.Context(), client.RbacV1().ClusterRoleBindings()
	const name = "system:controller:root-ca-cert-publisher"
	binding, err := bindings.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	last := ""
	testwait.NoError(t, "it is refused", func(ctx context.Context) error {
		made, err := client.CoreV1().
			Namespaces().
			Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		last = made.Name
		all, err := audit()
		if err == nil && !all["root-ca-cert-publisher create configmaps 403"] {
			err = fmt.Errorf("there are %v", all)
		}
		return err
	})
	binding.ResourceVersion = ""
	if _, err := bindings.Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace has what all have", published(client, last))
}

// A webhook that does not know the accounts must not stop the controllers.
func TestControllers_withoutRBAC(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: memory.Storage(), AuthorizationModes: []annex.AuthorizationMode{annex.AuthorizationAlwaysDeny}}
	client := kubernetes.NewForConfigOrDie(annextest.StartWith(t, cluster(), options))
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace("lab"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace has what all have", published(client, "lab"))
}
