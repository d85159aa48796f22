package ginkgo_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// room is where a spec works: a namespace of its own in the process's control plane, or the namespace shop of a fork.
type room struct {
	api       client.Client
	namespace string
	prepared  int
}

func enter(ctx SpecContext) room {
	GinkgoHelper()
	if *forks {
		fork, err := base.Fork()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(fork.Stop)
		return room{clientOf(fork), shop, *prepared}
	}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-"}}
	api := clientOf(base)
	Expect(api.Create(ctx, own)).To(Succeed())
	return room{api, own.Name, 0}
}

// Each spec creates objects of the same names, and counts all that its namespace has.
var _ = Describe("a control plane", func() {
	for i := range 24 {
		It(fmt.Sprintf("has the objects of one spec only, %d", i), func(ctx SpecContext) {
			at := enter(ctx)
			mine := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: "mine"}, Data: map[string]string{"spec": fmt.Sprint(i)},
			}
			Expect(at.api.Create(ctx, mine)).To(Succeed())
			var maps corev1.ConfigMapList
			count := func() int {
				Expect(at.api.List(ctx, &maps, client.InNamespace(at.namespace))).To(Succeed())
				return len(maps.Items)
			}
			// The controllers publish the certificate of the server in each namespace.
			Eventually(ctx, count).WithTimeout(wait).Should(Equal(at.prepared + 2))

			labels := map[string]string{"app": "mine"}
			deployment := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: "mine"},
				Spec: appsv1.DeploymentSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: labels},
						Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "mine", Image: "mine"}}},
					},
				},
			}
			Expect(at.api.Create(ctx, deployment)).To(Succeed())
			owner := metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: at.namespace, Name: "mine", Labels: labels, OwnerReferences: []metav1.OwnerReference{*owner},
				},
				Spec: deployment.Spec.Template.Spec,
			}
			Eventually(ctx, func() error { return client.IgnoreAlreadyExists(at.api.Create(ctx, pod)) }).WithTimeout(wait).Should(Succeed())
			Expect(at.api.Delete(ctx, deployment)).To(Succeed())
			gone := func() bool { return apierrors.IsNotFound(at.api.Get(ctx, client.ObjectKeyFromObject(pod), pod)) }
			Eventually(ctx, gone).WithTimeout(wait).Should(BeTrue(), "the pod is collected with its owner")
		})
	}
})
