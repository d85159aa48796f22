package garbage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/standalone/resources"
)

const component = "garbage-collector-controller"

// reportNamespace reports an owner that is not in the namespace of a reference: in the log and, best effort, as an
// event with kube-controller-manager's message.
func (c *Collector) reportNamespace(ctx context.Context, kinds *resources.Set, n *node, reference metav1.OwnerReference) {
	message := fmt.Sprintf("ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		reference.APIVersion, reference.Kind, n.namespace, reference.Name, reference.UID, n.namespace)
	klog.FromContext(ctx).
		Info("The owner of an object does not exist in the namespace of "+
			"the object", "resource", n.resource, "namespace", n.namespace, "name", n.name, "why", message)
	resource, known := kinds.Get(n.resource)
	if !known || c.events == nil {
		return
	}
	namespace, now := n.namespace, metav1.Now()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	// Best effort: the server may have no events.
	_, _ = c.events.Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: n.name + ".", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: resource.GroupVersion().String(), Kind: resource.Kind, Namespace: n.namespace, Name: n.name, UID: n.uid,
		},
		Type:                corev1.EventTypeWarning,
		Reason:              "OwnerRefInvalidNamespace",
		Message:             message,
		Source:              corev1.EventSource{Component: component},
		ReportingController: component,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
	}, metav1.CreateOptions{})
}
