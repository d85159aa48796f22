package workloads_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/workloads"
)

// startControlled starts a server with all controllers.
func startControlled(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	return kubernetes.NewForConfigOrDie(annextest.Start(t, define(workloads.Options{Controllers: []string{"*"}})))
}

// waitForPods waits until a namespace has the wanted number of pods that are not being deleted, and returns them.
func waitForPods(t *testing.T, client kubernetes.Interface, selector string, want int) (pods []corev1.Pod) {
	t.Helper()
	testwait.NoError(t, fmt.Sprintf("%d pods", want), func(ctx context.Context) error {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(pods) != want {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		return nil
	})
	return pods
}

// setStatus changes the status of a pod, as a kubelet does.
func setStatus(t *testing.T, client kubernetes.Interface, pod corev1.Pod, change func(*corev1.PodStatus)) {
	t.Helper()
	testwait.NoError(t, "status of "+pod.Name, func(ctx context.Context) error {
		p, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&p.Status)
		_, err = client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	})
}

// createNode creates the node n without the taint that admission gives to new nodes, as a controller of nodes does.
func createNode(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	without := []byte(`{"spec":{"taints":null}}`)
	if _, err := client.CoreV1().Nodes().Patch(t.Context(), "n", types.MergePatchType, without, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func ready(address string) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		s.Phase, s.PodIP, s.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	}
}

func TestControllers_deployment_makesPendingPods(t *testing.T) {
	client := startControlled(t)
	ctx, all := t.Context(), client.AppsV1().Deployments("default")
	d := deployment("d")
	d.Spec.Replicas = new(int32(2))
	if _, err := all.Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range waitForPods(t, client, "", 2) {
		if p.Status.Phase != corev1.PodPending || p.Spec.NodeName != "" {
			t.Errorf("the pod %s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
		}
		if m := p.ManagedFields; len(m) != 1 || m[0].Manager != "kube-controller-manager" {
			t.Errorf("the fields of the pod %s are managed by %+v", p.Name, m)
		}
	}
	scale := []byte(`{"spec":{"replicas":3}}`)
	if _, err := all.Patch(ctx, "d", types.MergePatchType, scale, metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	old := waitForPods(t, client, "", 3)

	// A rollout makes a second replica set, and replaces pods as those of the new one become ready.
	for i, p := range old {
		setStatus(t, client, p, ready(fmt.Sprintf("10.1.0.%d", i+1)))
	}
	image := []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"next"}]}}}}`)
	if _, err := all.Patch(ctx, "d", types.StrategicMergePatchType, image, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the rollout is complete", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i, p := range pods.Items {
			if p.Spec.Containers[0].Image != "next" || p.Status.Phase == corev1.PodRunning {
				continue
			}
			ready(fmt.Sprintf("10.2.0.%d", i+1))(&p.Status)
			if _, err := client.CoreV1().Pods("default").UpdateStatus(ctx, &p, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		d, err := all.Get(ctx, "d", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 3 || s.Replicas != 3 || s.AvailableReplicas != 3 {
			return fmt.Errorf("the status is %+v", s)
		}
		return nil
	})
	sets, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) != 2 {
		t.Errorf("%d replica sets, %v, want 2", len(sets.Items), err)
	}

	// Its dependents go with it.
	background := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if err := all.Delete(ctx, "d", background); err != nil {
		t.Fatal(err)
	}
	waitForPods(t, client, "", 0)
	testwait.NoError(t, "the replica sets are collected", func(ctx context.Context) error {
		sets, err := client.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		if err == nil && len(sets.Items) > 0 {
			err = fmt.Errorf("there are %d", len(sets.Items))
		}
		return err
	})
}

func TestControllers_otherWorkloads_makePods(t *testing.T) {
	client := startControlled(t)
	ctx := t.Context()
	template := func(app string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: podSpec()}
	}
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	createNode(t, client)
	jobTemplate := template("")
	jobTemplate.Labels, jobTemplate.Spec.RestartPolicy = nil, corev1.RestartPolicyNever
	for kind, create := range map[string]func() error{
		"StatefulSet": func() error {
			_, err := client.AppsV1().StatefulSets("default").Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: metav1.ObjectMeta{Name: "stateful"}, Spec: appsv1.StatefulSetSpec{
					Selector: selector("stateful"), Template: template("stateful"),
					VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim("data")},
				},
			}, metav1.CreateOptions{})
			return err
		},
		"DaemonSet": func() error {
			_, err := client.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
				Spec:       appsv1.DaemonSetSpec{Selector: selector("daemon"), Template: template("daemon")},
			}, metav1.CreateOptions{})
			return err
		},
		"ReplicationController": func() error {
			replicated := template("replicated")
			_, err := client.CoreV1().ReplicationControllers("default").Create(ctx, &corev1.ReplicationController{
				ObjectMeta: metav1.ObjectMeta{Name: "replicated"}, Spec: corev1.ReplicationControllerSpec{Template: &replicated},
			}, metav1.CreateOptions{})
			return err
		},
		"Job": func() error {
			_, err := client.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: "job"},
				Spec:       batchv1.JobSpec{Template: jobTemplate, TTLSecondsAfterFinished: new(int32(0))},
			}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := create(); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	waitForPods(t, client, "app=stateful", 1)
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Get(ctx, "data-stateful-0", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim of the stateful set: %v", err)
	}
	waitForPods(t, client, "app=daemon", 1)
	waitForPods(t, client, "app=replicated", 1)
	worked := waitForPods(t, client, "job-name=job", 1)[0]
	setStatus(t, client, worked, func(s *corev1.PodStatus) { s.Phase = corev1.PodSucceeded })
	testwait.NoError(t, "the finished job is deleted after its time", func(ctx context.Context) error {
		j, err := client.BatchV1().Jobs("default").Get(ctx, "job", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the job has the status %+v", j.Status)
		}
		return err
	})
}

func TestControllers_service_hasEndpointsOfReadyPods(t *testing.T) {
	client := startControlled(t)
	ctx := t.Context()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{
		Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := client.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createNode(t, client)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: labels}, Spec: podSpec()}
	pod.Spec.NodeName = "n"
	made, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitForAddresses := func(want ...string) {
		t.Helper()
		testwait.NoError(t, fmt.Sprintf("the addresses %q", want), func(ctx context.Context) error {
			var addresses, legacy []string
			slicesOf, err := client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
				LabelSelector: "kubernetes.io/service-name=s",
			})
			if err != nil {
				return err
			}
			for _, s := range slicesOf.Items {
				for _, e := range s.Endpoints {
					if e.Conditions.Ready != nil && *e.Conditions.Ready {
						addresses = append(addresses, e.Addresses...)
					}
				}
			}
			endpoints, err := client.CoreV1().Endpoints("default").Get(ctx, "s", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, s := range endpoints.Subsets {
				for _, a := range s.Addresses {
					legacy = append(legacy, a.IP)
				}
			}
			if !slices.Equal(addresses, want) || !slices.Equal(legacy, want) {
				return fmt.Errorf("slices have %q, endpoints have %q", addresses, legacy)
			}
			return nil
		})
	}
	waitForAddresses()
	setStatus(t, client, *made, ready("10.1.0.1"))
	waitForAddresses("10.1.0.1")
	setStatus(t, client, *made, func(s *corev1.PodStatus) { s.Conditions[len(s.Conditions)-1].Status = corev1.ConditionFalse })
	waitForAddresses()
}

func TestControllers_budgetAndAutoscaler(t *testing.T) {
	client := startControlled(t)
	ctx := t.Context()
	d := deployment("d")
	if _, err := client.AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
			MinReplicas:    new(int32(2)), MaxReplicas: 4,
		},
	}
	if _, err := client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(ctx, autoscaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, MinAvailable: new(intstr.FromInt32(1)),
	}}
	if _, err := client.PolicyV1().PodDisruptionBudgets("default").Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, p := range waitForPods(t, client, "", 2) {
		setStatus(t, client, p, ready(fmt.Sprintf("10.1.0.%d", i+1)))
	}
	testwait.NoError(t, "the budget allows an eviction", func(ctx context.Context) error {
		b, err := client.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "b", metav1.GetOptions{})
		if err == nil && b.Status.DisruptionsAllowed != 1 {
			err = fmt.Errorf("the status is %+v", b.Status)
		}
		return err
	})
}

// By default only the controllers run that remove the finalizers of volumes and claims.
func TestControllers_default_areOff(t *testing.T) {
	client, _ := start(t)
	ctx := t.Context()
	if _, err := client.AppsV1().Deployments("default").Create(ctx, deployment("d"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim("c"), metav1.CreateOptions{})
	if err != nil || len(made.Finalizers) != 1 {
		t.Fatalf("a claim with finalizers %q: %v", made.Finalizers, err)
	}
	if err := client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the claim goes", func(ctx context.Context) error {
		_, err := client.CoreV1().PersistentVolumeClaims("default").Get(ctx, "c", metav1.GetOptions{})
		if err == nil {
			err = fmt.Errorf("it is there")
		}
		return ignoring(err)
	})
	d, err := client.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{})
	if err != nil || d.Status.ObservedGeneration != 0 {
		t.Errorf("a controller has observed the deployment: %+v, %v", d.Status, err)
	}
}

// controllersRun reports whether a goroutine runs code of a controller.
func controllersRun() bool {
	stacks := make([]byte, 64<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("k8s.io/kubernetes/pkg/controller/"))
}

func TestControllers_stop_leavesNoGoroutines(t *testing.T) {
	t.Run("off", func(t *testing.T) {
		start(t)
		if controllersRun() {
			t.Error("controllers run that nobody has asked for")
		}
	})
	t.Run("on", func(t *testing.T) {
		client := startControlled(t)
		if _, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment("d"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waitForPods(t, client, "", 1)
		if !controllersRun() {
			t.Error("the goroutines of controllers are not found")
		}
	})
	testwait.Until(t, "the goroutines of controllers end", func() bool { return !controllersRun() })
}

func ignoring(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// The operator selects controllers by name, and two servers of a process run them at once.
func TestControllers_twoServers_selectedByTheOperator(t *testing.T) {
	shared := define(workloads.Options{})
	var clients []*kubernetes.Clientset
	for range 2 {
		clients = append(clients, kubernetes.NewForConfigOrDie(annextest.StartWith(t, shared, annex.Options{
			Storage: memory.Storage(), Controllers: []string{"*", "deployment-controller", "replicaset-controller"},
		})))
	}
	for i, client := range clients {
		d := deployment("d")
		d.Spec.Replicas = new(int32(i + 1))
		if _, err := client.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, client := range clients {
		waitForPods(t, client, "", i+1)
	}
}

func TestControllers_unknownName_isAMistake(t *testing.T) {
	for options, want := range map[*annex.Options]string{
		{Storage: memory.Storage(), Controllers: []string{"x-controller"}}: `Options.Controllers: unknown controller "x-controller"`,
		{Storage: memory.Storage()}:                                        `workloads.Options.Controllers: unknown controller "y-controller"`,
	} {
		server := define(workloads.Options{})
		if options.Controllers == nil {
			server = define(workloads.Options{Controllers: []string{"y-controller"}})
		}
		_, err := annex.New(t.Context(), server, *options)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// claim returns a claim of a volume.
func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}
