package controlplane

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

const rootCA = "kube-root-ca.crt"

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// published returns nil if a namespace has the objects that every namespace gets.
func published(client kubernetes.Interface, namespace string) func(context.Context) error {
	return func(ctx context.Context) error {
		if _, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		ca, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, rootCA, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(ca.Data["ca.crt"])) || len(ca.Data) != 1 ||
			ca.Annotations["kubernetes.io/description"] == "" {
			return fmt.Errorf("the ConfigMap is %v %v", ca.Annotations, ca.Data)
		}
		return nil
	}
}

func TestPublish_everyNamespace(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	testwait.NoError(t, "the namespace default has them", published(client, "default"))
	if _, err := core.Namespaces().Create(t.Context(), namespace("lab"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "a new namespace has them", published(client, "lab"))
	for name, disturb := range map[string]func() error{
		"the account is deleted": func() error {
			return core.ServiceAccounts("lab").Delete(t.Context(), "default", metav1.DeleteOptions{})
		},
		"the ConfigMap is deleted": func() error {
			return core.ConfigMaps("lab").Delete(t.Context(), rootCA, metav1.DeleteOptions{})
		},
		"the ConfigMap is changed": func() error {
			_, err := core.ConfigMaps("lab").Patch(t.Context(), rootCA, types.MergePatchType, []byte(`{"data":{"ca.crt":"none","more":"x"}}`),
				metav1.PatchOptions{})
			return err
		},
		"its annotation is taken away": func() error {
			_, err := core.ConfigMaps("lab").Patch(t.Context(), rootCA, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`),
				metav1.PatchOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := disturb(); err != nil {
				t.Fatal(err)
			}
			testwait.NoError(t, "it is as it was", published(client, "lab"))
		})
	}
}

// Objects that controllers recreate after deletion do not block the deletion of a namespace.
func TestPublish_deletedNamespace(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(annextest.Start(t, cluster()))
	core := client.CoreV1()
	if _, err := core.Namespaces().Create(t.Context(), namespace("lab"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace has them", published(client, "lab"))
	if err := core.Namespaces().Delete(t.Context(), "lab", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the namespace goes", func(ctx context.Context) error {
		if _, err := core.Namespaces().Get(ctx, "lab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is there: %w", err)
		}
		return nil
	})
	if left, err := core.ConfigMaps("lab").List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// The service accounts have a controller of their own, which needs no config maps.
func TestPublish_controllersOmittedByName(t *testing.T) {
	t.Parallel()
	plane := controlplane.New(controlplane.Options{Without: []string{"configmaps"}})
	_, err := annex.New(
		t.Context(),
		annex.Server{Name: "cluster", ControlPlane: plane},
		annex.Options{Storage: memory.Storage(), Controllers: []string{"root-ca-certificate-publisher-controller"}},
	)
	if err == nil || !strings.Contains(err.Error(), `unknown controller "root-ca-certificate-publisher-controller"`) {
		t.Errorf("without config maps the controller of them is %v", err)
	}
	config := annextest.StartWith(
		t,
		cluster(),
		annex.Options{Storage: memory.Storage(), Controllers: []string{"*", "-serviceaccount-controller"}},
	)
	core := kubernetes.NewForConfigOrDie(config).CoreV1()
	testwait.NoError(t, "the ConfigMap is there", func(ctx context.Context) error {
		_, err := core.ConfigMaps("default").Get(ctx, rootCA, metav1.GetOptions{})
		return err
	})
	if accounts, err := core.ServiceAccounts("").List(t.Context(), metav1.ListOptions{}); err != nil || len(accounts.Items) > 0 {
		t.Errorf("accounts are %v, %v", accounts, err)
	}
}
