package doctor

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func checkService(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	at := p.api.Spec.Service
	service, err := p.host.core.CoreV1().Services(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return p.serviceNotFound(ctx)
	}
	if err != nil {
		return mayNot("get services in "+at.Namespace, err)
	}
	p.service = service
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return ok(
			"has the type ExternalName and points to %s:%d; an API server with --enable-aggregator-routing rejects this type",
			service.Spec.ExternalName,
			at.Port,
		)
	}
	if _, _, message := p.api.available(); service.Spec.ClusterIP == corev1.ClusterIPNone && strings.Contains(message, `ClusterIP "None"`) {
		return wrong(Broken, ReasonServiceUnroutable, "is headless, but this API server uses the address of the Service").
			seenIn("the API server reports: "+message).
			repairedBy("# A clusterIP cannot be changed: create the Service again without \"clusterIP: None\".",
				fmt.Sprintf("kubectl -n %s get service %s -o yaml > service.yaml   # remove clusterIP and clusterIPs", at.Namespace, at.Name),
				fmt.Sprintf("kubectl -n %s replace --force -f service.yaml", at.Namespace))
	}
	if p.port() == nil {
		return p.portMissing()
	}
	return ok("%s of the type %s has the port %d", at.Namespace+"/"+at.Name, service.Spec.Type, at.Port)
}

func (p *examination) serviceNotFound(ctx context.Context) Finding {
	at := p.api.Spec.Service
	f := wrong(Broken, ReasonServiceNotFound, "the Service %s does not exist in the namespace %s", at.Name, at.Namespace)
	if _, err := p.host.core.CoreV1().Namespaces().Get(ctx, at.Namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		f = f.seenIn("the namespace does not exist: " + at.Namespace)
	} else if list, err := p.host.core.CoreV1().Services(at.Namespace).List(ctx, metav1.ListOptions{}); err == nil {
		var names []string
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		f = f.seenIn(fmt.Sprintf("the Services there: %s", orNone(names)))
	}
	return f.repairedBy(
		"# If the server has another Service:",
		patch(p.name, fmt.Sprintf(`{"spec":{"service":{"namespace":"%s","name":"SERVICE","port":%d}}}`, at.Namespace, at.Port)),
		"# If the server was removed, delete its APIService too, because namespaces cannot be deleted otherwise:",
		"kubectl delete apiservice "+p.name)
}

// port returns the port of the Service that the APIService names, or nil.
func (p *examination) port() *corev1.ServicePort {
	for i := range p.service.Spec.Ports {
		if p.service.Spec.Ports[i].Port == p.api.Spec.Service.Port {
			return &p.service.Spec.Ports[i]
		}
	}
	return nil
}

func (p *examination) portMissing() Finding {
	at := p.api.Spec.Service
	var has []string
	for _, port := range p.service.Spec.Ports {
		has = append(has, fmt.Sprint(port.Port))
	}
	f := wrong(
		Broken,
		ReasonServicePortMissing,
		"the APIService has the port %d, which the Service does not have: %s",
		at.Port,
		orNone(has),
	)
	if len(has) == 0 {
		has = []string{"PORT"}
	}
	return f.repairedBy(patch(p.name, fmt.Sprintf(`{"spec":{"service":{"port":%s}}}`, has[0])))
}

// backends are the pods that a Service selects.
type backends struct {
	pods []corev1.Pod
	err  error
}

func (p *examination) findBackends(ctx context.Context) *backends {
	if p.backends != nil {
		return p.backends
	}
	p.backends = &backends{}
	if p.service == nil || len(p.service.Spec.Selector) == 0 {
		return p.backends
	}
	list, err := p.host.core.CoreV1().Pods(p.service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: p.selector()})
	if err != nil {
		p.backends.err = err
		return p.backends
	}
	p.backends.pods = list.Items
	return p.backends
}

func (p *examination) selector() string {
	return labels.SelectorFromSet(p.service.Spec.Selector).String()
}

func checkEndpoints(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if p.service == nil {
		return unseen("the Service could not be read")
	}
	if p.service.Spec.Type == corev1.ServiceTypeExternalName {
		return unseen("a Service of the type ExternalName has no endpoints: the API server connects to " + p.service.Spec.ExternalName)
	}
	list, err := p.host.core.DiscoveryV1().
		EndpointSlices(p.service.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + p.service.Name})
	if err != nil {
		return mayNot("list endpointslices in "+p.service.Namespace, err)
	}
	p.slices = list.Items
	ready, all := p.endpoints()
	switch {
	case len(all) == 0:
		return p.noEndpoints(ctx)
	case len(ready) == 0:
		return p.notReady(ctx, len(all))
	case len(p.targets()) == 0:
		return wrong(Broken, ReasonEndpointPortMissing, "no endpoint has the port %s", portText(p.port())).
			seenIn("the Service's targetPort is the name of a port that no container of its pods has").
			repairedBy(fmt.Sprintf("kubectl -n %s get pods -l %s -o jsonpath='{.items[*].spec.containers[*].ports}'", p.service.Namespace,
				p.selector()),
				fmt.Sprintf("kubectl -n %s edit service %s   # set targetPort to one of them", p.service.Namespace, p.service.Name))
	case len(ready) < len(all):
		return ok("%d of %d are ready: %s", len(ready), len(all), strings.Join(p.targets(), ", "))
	}
	return ok("%d are ready: %s", len(ready), strings.Join(p.targets(), ", "))
}

func portText(port *corev1.ServicePort) string {
	if port.Name != "" {
		return port.Name
	}
	return fmt.Sprint(port.Port)
}

// endpoints returns the addresses of ready endpoints, and of all endpoints. An endpoint without the condition Ready
// counts as ready.
func (p *examination) endpoints() (ready, all []string) {
	for _, s := range p.slices {
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			all = append(all, e.Addresses[0])
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready = append(ready, e.Addresses[0])
			}
		}
	}
	return ready, all
}

// targets returns the addresses, with ports, to which the API server may connect.
func (p *examination) targets() []string {
	var found []string
	for _, s := range p.slices {
		for _, port := range s.Ports {
			if port.Port == nil || port.Name != nil && *port.Name != p.port().Name {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					found = append(found, hostPort(e.Addresses[0], *port.Port))
				}
			}
		}
	}
	return found
}

func (p *examination) noEndpoints(ctx context.Context) Finding {
	name, namespace := p.service.Name, p.service.Namespace
	f := wrong(Broken, ReasonNoEndpoints, "the Service %s/%s has no endpoints", namespace, name)
	if len(p.service.Spec.Selector) == 0 {
		return f.seenIn("the Service has no selector, so no controller creates its EndpointSlices").
			repairedBy("# Set the selector to the labels of the server's pods:",
				fmt.Sprintf(`kubectl -n %s patch service %s --type=merge -p '{"spec":{"selector":{"app":"NAME"}}}'`, namespace, name))
	}
	f.Message += ": it selects " + p.selector()
	found := p.findBackends(ctx)
	if found.err != nil {
		return f.seenIn(mayNot("list pods in "+namespace, found.err).Message).
			repairedBy(fmt.Sprintf("kubectl -n %s get pods -l %s", namespace, p.selector()))
	}
	if len(found.pods) > 0 {
		return f.seenIn(podStates(found.pods)...).repairedBy(p.lookAtPods()...)
	}
	f = f.seenIn("no pod has these labels")
	if deployed := p.workloads(ctx); len(deployed) > 0 {
		for _, w := range deployed {
			f = f.seenIn(fmt.Sprintf("%s wants %d replicas", w.name, w.replicas))
		}
		return f.repairedBy(
			fmt.Sprintf("kubectl -n %s scale %s --replicas=1   # if it has no replicas", namespace, deployed[0].name),
			fmt.Sprintf("kubectl -n %s describe %s             # if it creates no pods", namespace, deployed[0].name))
	}
	return f.seenIn("no Deployment, StatefulSet or DaemonSet creates matching pods").
		repairedBy("# Deploy the server, or make the Service select its pods:",
			fmt.Sprintf("kubectl -n %s get pods --show-labels", namespace),
			fmt.Sprintf("kubectl -n %s edit service %s   # spec.selector", namespace, name),
			"# If the server was removed, delete its APIService too, because namespaces cannot be deleted otherwise:",
			"kubectl delete apiservice "+p.name)
}

// workload is an object that creates pods which a Service selects.
type workload struct {
	name           string
	replicas       int32
	serviceAccount string
}

// workloads returns the workloads that the user may read.
func (p *examination) workloads(ctx context.Context) []workload {
	var found []workload
	if p.service == nil || len(p.service.Spec.Selector) == 0 {
		return nil
	}
	selector, apps, ns := labels.SelectorFromSet(p.service.Spec.Selector), p.host.core.AppsV1(), p.service.Namespace
	add := func(name string, replicas *int32, template corev1.PodTemplateSpec) {
		if !selector.Matches(labels.Set(template.Labels)) {
			return
		}
		w := workload{name: name, replicas: 1, serviceAccount: template.Spec.ServiceAccountName}
		if replicas != nil {
			w.replicas = *replicas
		}
		found = append(found, w)
	}
	if list, err := apps.Deployments(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, d := range list.Items {
			add("deployment/"+d.Name, d.Spec.Replicas, d.Spec.Template)
		}
	}
	if list, err := apps.StatefulSets(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, s := range list.Items {
			add("statefulset/"+s.Name, s.Spec.Replicas, s.Spec.Template)
		}
	}
	if list, err := apps.DaemonSets(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, d := range list.Items {
			add("daemonset/"+d.Name, wanted(d), d.Spec.Template)
		}
	}
	return found
}

func wanted(d appsv1.DaemonSet) *int32 { return &d.Status.DesiredNumberScheduled }

func (p *examination) notReady(ctx context.Context, count int) Finding {
	f := wrong(Broken, ReasonEndpointsNotReady, "none of %d is ready", count)
	found := p.findBackends(ctx)
	if found.err != nil {
		f = f.seenIn(mayNot("list pods in "+p.service.Namespace, found.err).Message)
	}
	f = f.seenIn(podStates(found.pods)...)
	for _, pod := range found.pods {
		if said := p.readyz(ctx, &pod); said != "" {
			f = f.seenIn(fmt.Sprintf("/readyz of %s reports: %s", pod.Name, said))
			break
		}
	}
	return f.repairedBy(p.lookAtPods()...)
}

func (p *examination) lookAtPods() []string {
	ns, selector := p.service.Namespace, p.selector()
	return []string{
		fmt.Sprintf("kubectl -n %s describe pods -l %s", ns, selector),
		fmt.Sprintf("kubectl -n %s logs -l %s --all-containers --tail=50", ns, selector),
		fmt.Sprintf("kubectl -n %s logs -l %s --all-containers --tail=50 --previous   # if they restart repeatedly", ns, selector),
	}
}

// podStates returns the reasons why pods are not ready, a line for each.
func podStates(pods []corev1.Pod) []string {
	var said []string
	for _, pod := range pods {
		if state := podState(&pod); state != "" {
			said = append(said, fmt.Sprintf("pod %s: %s", pod.Name, state))
		}
	}
	const enough = 5
	if len(said) > enough {
		said = append(said[:enough], fmt.Sprintf("and %d pods more", len(said)-enough))
	}
	return said
}

func podState(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.Ready {
			continue
		}
		if w := c.State.Waiting; w != nil {
			return strings.TrimSpace(
				fmt.Sprintf("container %s waits: %s %s %s", c.Name, w.Reason, w.Message, ended(c.LastTerminationState.Terminated)),
			)
		}
		if t := c.State.Terminated; t != nil && (t.ExitCode != 0 || c.RestartCount > 0) {
			return fmt.Sprintf("container %s%s", c.Name, ended(t))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			return fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "it is " + string(pod.Status.Phase)
	}
	return ""
}

func ended(t *corev1.ContainerStateTerminated) string {
	if t == nil {
		return ""
	}
	return strings.TrimRight(fmt.Sprintf(" ended with exit code %d (%s) %s", t.ExitCode, t.Reason, t.Message), " \n")
}

// readyz asks a pod for the reason why it is not ready, through the API server's proxy: servers of Kubernetes'
// library serve the path to anonymous requests. It is empty if the pod does not answer.
func (p *examination) readyz(ctx context.Context, pod *corev1.Pod) string {
	port := containerPort(pod, p.port())
	if port == 0 || pod.Status.Phase != corev1.PodRunning {
		return ""
	}
	a, err := p.host.get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/https:%s:%d/proxy/readyz", pod.Namespace, pod.Name, port))
	if err != nil || a.status == http.StatusOK || a.status == http.StatusForbidden {
		return ""
	}
	var failed []string
	for line := range strings.Lines(string(a.body)) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	return strings.Join(failed, "; ")
}

func containerPort(pod *corev1.Pod, port *corev1.ServicePort) int32 {
	if port == nil {
		return 0
	}
	if number := port.TargetPort.IntVal; number != 0 {
		return number
	}
	for _, c := range pod.Spec.Containers {
		for _, has := range c.Ports {
			if port.TargetPort.StrVal != "" && has.Name == port.TargetPort.StrVal {
				return has.ContainerPort
			}
		}
	}
	if port.TargetPort.StrVal == "" {
		return port.Port
	}
	return 0
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
