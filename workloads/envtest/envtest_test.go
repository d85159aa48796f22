package envtest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/workloads/envtest"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

func start(t *testing.T, e *envtest.Environment) client.Client {
	t.Helper()
	config, err := e.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEnvironment_definitionsAndPods(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "widgets.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &envtest.Environment{CRDDirectoryPaths: []string{dir}, ErrorIfCRDPathMissing: true}
	c := start(t, e)
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Widget"})
	widget.SetNamespace("default")
	widget.SetName("w")
	if err := c.Create(t.Context(), widget); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if len(e.CRDs) != 1 || len(e.KubeConfig) == 0 {
		t.Errorf("%d definitions and a kubeconfig of %d bytes after Start", len(e.CRDs), len(e.KubeConfig))
	}
	if _, err := e.Start(); err == nil {
		t.Error("a second Start succeeds")
	}
}

func TestEnvironment_namespacesStayUnlessLikeCluster(t *testing.T) {
	for name, likeCluster := range map[string]bool{"like envtest": false, "like a cluster": true} {
		t.Run(name, func(t *testing.T) {
			c := start(t, &envtest.Environment{LikeCluster: likeCluster})
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
			if err := c.Create(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
			if err := c.Delete(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for likeCluster {
				err := c.Get(ctx, client.ObjectKeyFromObject(ns), ns)
				if apierrors.IsNotFound(err) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Get(ctx, client.ObjectKeyFromObject(ns), ns); err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
				t.Errorf("%v of phase %s, want Terminating", err, ns.Status.Phase)
			}
		})
	}
}

func TestAddUser_hasItsGroupsOnly(t *testing.T) {
	e := &envtest.Environment{}
	start(t, e)
	amy, err := e.AddUser(envtest.User{Name: "amy", Groups: []string{"cooks"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := amy.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.List(t.Context(), &corev1.PodList{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"amy"`) {
		t.Errorf("a user without rights lists pods: %v", err)
	}
}

func TestStart_mistakes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte("kind: CustomResourceDefinition\nspec: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := &envtest.Environment{}
	flags.ControlPlane.GetAPIServer().Configure().Set("feature-gates", "A=true")
	for name, e := range map[string]*envtest.Environment{
		"missing folder":    {CRDDirectoryPaths: []string{filepath.Join(dir, "missing")}, ErrorIfCRDPathMissing: true},
		"broken definition": {CRDDirectoryPaths: []string{dir}},
		"arguments":         flags,
		"time out":          {ControlPlaneStartTimeout: 1},
	} {
		if _, err := e.Start(); err == nil {
			t.Errorf("%s: Start succeeds", name)
		}
		if err := e.Stop(); err != nil {
			t.Errorf("%s: Stop after an error of Start: %v", name, err)
		}
	}
	if _, err := (&envtest.Environment{}).AddUser(envtest.User{Name: "amy"}, nil); err == nil {
		t.Error("a user of an environment that is not started")
	}
}
