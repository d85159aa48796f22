package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	netutils "k8s.io/utils/net"
)

// kubernetesName is the name of the Service of the server itself, and of the range of its address.
const kubernetesName = "kubernetes"

// initial creates the objects that a kube-apiserver creates at its start.
type initial struct {
	client   kubernetes.Interface
	services *services
	// done is closed when all objects exist.
	done chan struct{}
}

// run tries until all objects exist or the context ends.
func (i *initial) run(ctx context.Context) {
	log := klog.FromContext(ctx)
	delay := 10 * time.Millisecond
	for {
		err := i.create(ctx)
		if err == nil {
			close(i.done)
			return
		}
		if delay >= time.Second && ctx.Err() == nil {
			log.Error(err, "Could not create the objects that every cluster has, trying again")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
			delay = min(2*delay, 10*time.Second)
		}
	}
}

// ready returns the reason why objects are missing, or nil.
func (i *initial) ready() error {
	select {
	case <-i.done:
		return nil
	default:
		return errors.New("not all objects that every cluster has exist yet")
	}
}

func (i *initial) create(ctx context.Context) error {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"priority classes", i.createClasses},
		{"range of service addresses", i.services.createRange},
		{"range of service addresses", func(context.Context) error { return i.services.hasAddresses() }},
		{"node ports", i.services.waitForPorts},
		{"Service " + kubernetesName, i.createService},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (i *initial) createClasses(ctx context.Context) error {
	var errs []error
	for _, class := range scheduling.SystemPriorityClasses() {
		_, err := i.client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{})
		errs = append(errs, existing(err))
	}
	return errors.Join(errs...)
}

// createService creates the Service by which pods would find the server. It has no endpoints, because no pod runs.
func (i *initial) createService(ctx context.Context) error {
	address, err := netutils.GetIndexedIP(i.services.ranges[0], 1)
	if err != nil {
		return err
	}
	services, family := i.client.CoreV1().Services(metav1.NamespaceDefault), corev1.IPFamilyPolicySingleStack
	// A create would fail by the address, which the existing Service has.
	if _, err := services.Get(ctx, kubernetesName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err = services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{
				{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(6443)},
			},
			ClusterIP: address.String(), IPFamilyPolicy: &family, SessionAffinity: corev1.ServiceAffinityNone, Type: corev1.ServiceTypeClusterIP,
		},
	}, metav1.CreateOptions{})
	return existing(err)
}

// existing returns an error unless it is that an object exists already.
func existing(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
