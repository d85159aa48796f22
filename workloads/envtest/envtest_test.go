package envtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex/internal/testing/testwait"
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

func TestEnvironment_controllers_run(t *testing.T) {
	c := start(t, &envtest.Environment{Controllers: []string{"deployment-controller", "replicaset-controller"}})
	labels := map[string]string{"app": "a"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "default"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		},
	}}
	if err := c.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the deployment has pods", func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := c.List(ctx, pods, client.InNamespace("default")); err != nil {
			return err
		}
		if len(pods.Items) != 2 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
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

func TestAddUser_withoutName_isRefused(t *testing.T) {
	e := &envtest.Environment{}
	start(t, e)
	if _, err := e.AddUser(envtest.User{Groups: []string{"cooks"}}, nil); err == nil || !strings.Contains(err.Error(), "User.Name is "+
		"empty") {
		t.Errorf("got %v", err)
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
		"controller":        {Controllers: []string{"deployment"}},
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

func TestEnvironment_Fork_isAPrivateCluster(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "widgets.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	base := &envtest.Environment{CRDDirectoryPaths: []string{dir}, ErrorIfCRDPathMissing: true}
	if _, err := base.Fork(); err == nil {
		t.Error("an environment that is not started has a fork")
	}
	c := start(t, base)
	jane, err := base.AddUser(envtest.User{Name: "jane", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	createPod(t, c, "prepared")
	snapshot := filepath.Join(dir, "snapshot")
	if err := base.WriteSnapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	forked := func(t *testing.T, e *envtest.Environment) client.Client {
		t.Helper()
		t.Cleanup(func() {
			if err := e.Stop(); err != nil {
				t.Error(err)
			}
		})
		c, err := client.New(e.Config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i := range 2 {
		fork, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		own := forked(t, fork)
		createPod(t, own, "own")
		if got := podNames(t, own); got != "own prepared" {
			t.Errorf("fork %d has %s", i, got)
		}
		widget := &unstructured.Unstructured{}
		widget.SetGroupVersionKind(schema.GroupVersionKind{Group: "shop.example.com", Version: "v1", Kind: "Widget"})
		widget.SetNamespace("default")
		widget.SetName("w")
		if err := own.Create(t.Context(), widget); err != nil {
			t.Errorf("a custom resource: %v", err)
		}
		config := jane.Config()
		config.Host, config.CAData = fork.Config.Host, fork.Config.CAData
		if as, err := client.New(config, client.Options{}); err != nil || podNames(t, as) != "own prepared" {
			t.Errorf("a user of the base: %v", err)
		}
		if _, err := fork.Start(); err == nil {
			t.Error("a fork was started again")
		}
	}
	if got := podNames(t, c); got != "prepared" {
		t.Errorf("the base has %s", got)
	}
	restored := &envtest.Environment{Snapshot: snapshot}
	if got := podNames(t, start(t, restored)); got != "prepared" {
		t.Errorf("restored: %s", got)
	}
}

func TestEnvironment_badSnapshot_isRefused(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{bad + "x": "no such file", bad: "read the snapshot: the header"} {
		e := &envtest.Environment{Snapshot: path}
		if _, err := e.Start(); err == nil || !strings.Contains(err.Error(), "start the environment: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if err := e.WriteSnapshot(bad); err == nil {
			t.Error("wrote a snapshot of an environment that is not started")
		}
	}
}

func createPod(t *testing.T, c client.Client, name string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func podNames(t *testing.T, c client.Client) string {
	t.Helper()
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return strings.Join(names, " ")
}

// BenchmarkEnvironment measures the start of an environment, and of a fork of one, while all earlier ones run.
func BenchmarkEnvironment(b *testing.B) {
	base := &envtest.Environment{}
	stop := func(e *envtest.Environment) {
		b.Cleanup(func() {
			if err := e.Stop(); err != nil {
				b.Error(err)
			}
		})
	}
	if _, err := base.Start(); err != nil {
		b.Fatal(err)
	}
	stop(base)
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			e := &envtest.Environment{}
			if _, err := e.Start(); err != nil {
				b.Fatal(err)
			}
			stop(e)
		}
	})
	fork := func(b *testing.B) {
		e, err := base.Fork()
		if err != nil {
			b.Fatal(err)
		}
		stop(e)
	}
	b.Run("fork", func(b *testing.B) {
		for b.Loop() {
			fork(b)
		}
	})
	// Each test works for half a second between two forks.
	b.Run("fork-between-tests", func(b *testing.B) {
		var all []time.Duration
		for b.Loop() {
			began := time.Now()
			fork(b)
			all = append(all, time.Since(began))
			b.StopTimer()
			time.Sleep(500 * time.Millisecond)
			b.StartTimer()
		}
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-median")
	})
}
