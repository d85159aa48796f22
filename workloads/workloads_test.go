package workloads_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/workloads"
)

func start(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	s := annextest.Start(t, annex.Server{Name: "test", ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New(workloads.Options{})})})
	return kubernetes.NewForConfigOrDie(s)
}

func TestServer_deploymentsAndPods(t *testing.T) {
	client := start(t)
	labels := map[string]string{"app": "a"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	made, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Spec.Strategy.Type; got != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("strategy %q, want the default", got)
	}
	scale, err := client.AppsV1().Deployments("default").GetScale(t.Context(), "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 1 {
		t.Errorf("%d replicas, want the default", scale.Spec.Replicas)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: deployment.Spec.Template.Spec}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("pods %v, %v", pods, err)
	}
	_, resources, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range resources {
		for _, r := range l.APIResources {
			t.Log(l.GroupVersion, r.Name, r.Verbs)
		}
	}
	config, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(config, err)
	}
}
