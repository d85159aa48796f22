package workloads_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// createQuota creates a quota, and waits until it is enforced: admission reads quotas by an informer of its own, so another
// quota is created last, which admission enforces later than the first.
func createQuota(t *testing.T, client kubernetes.Interface, hard map[corev1.ResourceName]string, scopes ...corev1.ResourceQuotaScope) {
	t.Helper()
	quotas, secrets := client.CoreV1().ResourceQuotas("default"), client.CoreV1().Secrets("default")
	create := func(name string, hard map[corev1.ResourceName]string, scopes ...corev1.ResourceQuotaScope) {
		q := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}, Scopes: scopes},
		}
		for name, quantity := range hard {
			q.Spec.Hard[name] = resource.MustParse(quantity)
		}
		if _, err := quotas.Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "the quota has a status", func(ctx context.Context) error {
			q, err := quotas.Get(ctx, name, metav1.GetOptions{})
			if err == nil && len(q.Status.Hard) == 0 {
				err = fmt.Errorf("it has none")
			}
			return err
		})
	}
	create("q", hard, scopes...)
	create("last", map[corev1.ResourceName]string{"secrets": "0"})
	testwait.NoError(t, "admission enforces the quota that was created last", func(ctx context.Context) error {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
		_, err := secrets.Create(ctx, secret, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), "exceeded quota: last") {
			return nil
		}
		return fmt.Errorf("a secret beyond the limit: %w", err)
	})
	if err := quotas.Delete(t.Context(), "last", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitForUse waits until the quota has the wanted use.
func waitForUse(t *testing.T, client kubernetes.Interface, want map[corev1.ResourceName]string) {
	t.Helper()
	testwait.NoError(t, fmt.Sprintf("the use is %v", want), func(ctx context.Context) error {
		q, err := client.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := map[corev1.ResourceName]string{}
		for name, used := range q.Status.Used {
			got[name] = used.String()
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

func podUsing(name, cpu, memory string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec()}
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
	return p
}

func TestQuota_pods_chargesWhatTheyRequest(t *testing.T) {
	client, _ := start(t)
	ctx, pods := t.Context(), client.CoreV1().Pods("default")
	if _, err := pods.Create(ctx, podUsing("before", "100m", "10Mi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createQuota(t, client, map[corev1.ResourceName]string{"requests.cpu": "1", "memory": "1Gi", "pods": "3", "count/pods": "9"})
	waitForUse(t, client, map[corev1.ResourceName]string{"requests.cpu": "100m", "memory": "10Mi", "pods": "1", "count/pods": "1"})
	if _, err := pods.Create(ctx, podUsing("a", "800m", "10Mi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[*corev1.Pod]string{
		podUsing("b", "200m", "1Mi"): `pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu=900m, ` +
			`limited: requests.cpu=1`,
		{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: podSpec()}: `pods "c" is forbidden: failed quota: q: must specify memory for: c; ` +
			`requests.cpu for: c`,
	} {
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	waitForUse(t, client, map[corev1.ResourceName]string{"requests.cpu": "900m", "memory": "20Mi", "pods": "2", "count/pods": "2"})
	// A pod that has ended uses nothing, but is counted. No event but the update of its status tells so.
	setStatus(t, client, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodSucceeded
	})
	waitForUse(t, client, map[corev1.ResourceName]string{"requests.cpu": "100m", "memory": "10Mi", "pods": "1", "count/pods": "2"})
	if err := pods.Delete(ctx, "before", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	waitForUse(t, client, map[corev1.ResourceName]string{"requests.cpu": "0", "memory": "0", "pods": "0", "count/pods": "1"})
}

func TestQuota_scope_chargesPodsOfIt(t *testing.T) {
	client, _ := start(t)
	ctx, pods := t.Context(), client.CoreV1().Pods("default")
	createQuota(t, client, map[corev1.ResourceName]string{"pods": "1"}, corev1.ResourceQuotaScopeBestEffort)
	for _, p := range []*corev1.Pod{podUsing("a", "1", "1Mi"), {ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: podSpec()}} {
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: podSpec()}
	if _, err := pods.Create(ctx, other, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a second pod without requests: %v", err)
	}
	waitForUse(t, client, map[corev1.ResourceName]string{"pods": "1"})
}

func TestQuota_servicesAndClaims(t *testing.T) {
	client, _ := start(t)
	ctx := t.Context()
	createQuota(t, client, map[corev1.ResourceName]string{
		"services": "3", "services.nodeports": "1", "services.loadbalancers": "0", "count/services": "3", "requests.storage": "2Gi",
		"persistentvolumeclaims": "5", "fast.storageclass.storage.k8s.io/requests.storage": "1Gi", "configmaps": "9",
	})
	service := func(name string, kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}},
		}
	}
	services := client.CoreV1().Services("default")
	for _, s := range []*corev1.Service{service("a", corev1.ServiceTypeNodePort), service("b", corev1.ServiceTypeClusterIP)} {
		if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := services.Create(ctx, service("c", corev1.ServiceTypeLoadBalancer), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "services.loadbalancers=1") {
		t.Errorf("a load balancer: %v", err)
	}
	toNodePort := []byte(`{"spec":{"type":"NodePort"}}`)
	if _, err := services.Patch(ctx, "b", types.MergePatchType, toNodePort, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a second node port by an update: %v", err)
	}
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	large := claim("b")
	large.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	_, err = client.CoreV1().PersistentVolumeClaims("default").Create(ctx, large, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "requests.storage=2Gi") {
		t.Errorf("a claim beyond the quota: %v", err)
	}
	use := map[corev1.ResourceName]string{
		"services": "3", "services.nodeports": "1", "services.loadbalancers": "0", "count/services": "3", "requests.storage": "1Gi",
		"persistentvolumeclaims": "1", "fast.storageclass.storage.k8s.io/requests.storage": "0", "configmaps": "1",
	}
	waitForUse(t, client, use) // the Service and the ConfigMap of every cluster count, too
	toClusterIP := []byte(`{"spec":{"type":"ClusterIP"}}`)
	if _, err := services.Patch(ctx, "a", types.MergePatchType, toClusterIP, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	use["services.nodeports"] = "0"
	waitForUse(t, client, use)
}

// Clients that create at once get no more than the quota, and the use is exact in the end.
func TestQuota_resourceClaims_chargesDevicesByClass(t *testing.T) {
	client, _ := start(t)
	const devices = "gpu.deviceclass.resource.k8s.io/devices"
	createQuota(t, client, map[corev1.ResourceName]string{devices: "3", "count/resourceclaims.resource.k8s.io": "9"})
	claims := client.ResourceV1().ResourceClaims("default")
	claim := func(name string, count int64) *resourcev1.ResourceClaim {
		exactly := &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		}
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.ResourceClaimSpec{
				Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: exactly}}},
			},
		}
	}
	if _, err := claims.Create(t.Context(), claim("a", 2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForUse(t, client, map[corev1.ResourceName]string{devices: "2", "count/resourceclaims.resource.k8s.io": "1"})
	_, err := claims.Create(t.Context(), claim("b", 2), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "requested: "+devices+"=2, used: "+devices+"=2, limited: "+devices+"=3") {
		t.Errorf("a claim above the quota: %v", err)
	}
	if err := claims.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForUse(t, client, map[corev1.ResourceName]string{devices: "0", "count/resourceclaims.resource.k8s.io": "0"})
}

func TestQuota_concurrentCreates_getNoMore(t *testing.T) {
	client, _ := start(t)
	createQuota(t, client, map[corev1.ResourceName]string{"cpu": "10", "pods": "100"})
	var all sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 8 {
		all.Go(func() {
			for j := range 5 {
				p := podUsing(fmt.Sprintf("p-%d-%d", i, j), "1", "1Mi")
				_, err := client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
				switch {
				case err == nil:
					mu.Lock()
					admitted++
					mu.Unlock()
				case !apierrors.IsForbidden(err):
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if admitted != 10 {
		t.Errorf("%d pods were admitted, want 10", admitted)
	}
	waitForUse(t, client, map[corev1.ResourceName]string{"cpu": "10", "pods": "10"})
}

func TestLimitRange_fillsAndRefuses(t *testing.T) {
	client, _ := start(t)
	ctx := t.Context()
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
	}}}}
	if _, err := client.CoreV1().LimitRanges("default").Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the limits are in force", func(ctx context.Context) error {
		large := podUsing("large", "2", "1Mi")
		large.Spec.Containers[0].Resources.Limits = large.Spec.Containers[0].Resources.Requests
		_, err := client.CoreV1().Pods("default").Create(ctx, large, metav1.CreateOptions{DryRun: []string{"All"}})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "maximum cpu usage per Container is 1") {
			return nil
		}
		return fmt.Errorf("a pod beyond them: %w", err)
	})
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	made, err := client.CoreV1().Pods("default").Create(ctx, bare, metav1.CreateOptions{})
	if err != nil || made.Spec.Containers[0].Resources.Requests.Cpu().String() != "100m" {
		t.Errorf("%v, %+v, want the default of the limits", err, made.Spec.Containers)
	}
}
