// Package deploy applies the output of a server's verb manifests to a cluster, waits until the cluster serves the
// server's APIs, and uninstalls a server again.
package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// FieldManager is the field manager of deploy.
const FieldManager = "annex-deploy"

// nameLabel is the label that identifies the objects of a server.
const nameLabel = "app.kubernetes.io/name"

// pollInterval is the interval at which an APIService is polled.
const pollInterval = time.Second

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// Cluster is a cluster to deploy into. It must not be used concurrently.
type Cluster struct {
	host    string
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	// Say receives a line about each step.
	Say func(format string, args ...any)
}

// New returns a cluster. It sends no requests yet.
func New(config *rest.Config, say func(format string, args ...any)) (*Cluster, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("deploy: %w", err)
	}
	return &Cluster{config.Host, client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco)), say}, nil
}

// Ask returns an error unless the cluster serves APIServices, so that nothing is built in vain.
func (c *Cluster) Ask() error {
	_, err := c.mapper.RESTMapping(schema.GroupKind{Group: apiServices.Group, Kind: "APIService"}, apiServices.Version)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("deploy: %s does not serve APIServices, so it is not the kube-apiserver of a cluster: select a cluster with "+
			"--kubeconfig or --context", c.host)
	}
	if err != nil {
		return fmt.Errorf("deploy: read the API groups of %s: %w", c.host, err)
	}
	return nil
}

// resource returns the client for an object's resource.
func (c *Cluster) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf(
			"the cluster does not serve %s: install the component that serves it, or use other flags for manifests",
			kind.GroupVersion().WithKind(kind.Kind),
		)
	}
	if err != nil {
		return nil, fmt.Errorf("read the API groups of %s: %w", c.host, err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
	}
	return c.dynamic.Resource(mapping.Resource), nil
}

// Apply applies the objects in their order, by server-side apply. Fields that another manager has set to another
// value are an error unless force is set. With dryRun the cluster checks the objects and stores nothing; objects in a
// namespace that does not exist are not checked.
func (c *Cluster) Apply(ctx context.Context, objects []*unstructured.Unstructured, force, dryRun bool) error {
	// A kind that the cluster lacks is found before anything is applied.
	clients := make([]dynamic.ResourceInterface, len(objects))
	for i, o := range objects {
		client, err := c.resource(o)
		if err != nil {
			return fmt.Errorf("deploy: %w", err)
		}
		clients[i] = client
	}
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: force}
	suffix := ""
	if dryRun {
		options.DryRun, suffix = []string{metav1.DryRunAll}, " (dry run)"
	}
	for i, o := range objects {
		before, err := clients[i].Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deploy: get %s: %w", label(o), err)
		}
		after, err := clients[i].Apply(ctx, o.GetName(), o, options)
		switch {
		case dryRun && apierrors.IsNotFound(err):
			c.Say("%s created (not validated, because its namespace does not exist yet)%s", label(o), suffix)
			continue
		case apierrors.IsConflict(err):
			return fmt.Errorf("deploy: apply %s: %w; to take over the fields, use --force-conflicts", label(o), err)
		case err != nil:
			return fmt.Errorf("deploy: apply %s: %w", label(o), err)
		}
		switch {
		case before == nil:
			c.Say("%s created%s", label(o), suffix)
		case before.GetResourceVersion() == after.GetResourceVersion() && !dryRun:
			c.Say("%s unchanged", label(o))
		default:
			c.Say("%s configured%s", label(o), suffix)
		}
	}
	return nil
}

// Wait waits until each APIService among the objects has the condition Available, as kubectl get apiservice shows it.
func (c *Cluster) Wait(ctx context.Context, objects []*unstructured.Unstructured, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, o := range objects {
		if o.GetKind() != "APIService" {
			continue
		}
		last := ""
		err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
			now, err := c.dynamic.Resource(apiServices).Get(ctx, o.GetName(), metav1.GetOptions{})
			status, why := "Unknown", ""
			if err != nil {
				why = err.Error()
			} else {
				status, why = available(now)
			}
			if line := status + " " + why; line != last && ctx.Err() == nil {
				last = line
				c.Say("apiservice %s: available %s", o.GetName(), strings.TrimSpace(line))
			}
			return status == "True", nil
		})
		if err != nil {
			return fmt.Errorf("deploy: apiservice %s is not available after %s: %s; to find the cause, run annex "+
				"doctor %[1]s", o.GetName(), timeout, last)
		}
	}
	return nil
}

// available returns the status of an APIService's condition Available, and its reason.
func available(o *unstructured.Unstructured) (status, why string) {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, one := range conditions {
		condition, ok := one.(map[string]any)
		if !ok || condition["type"] != "Available" {
			continue
		}
		status, _ := condition["status"].(string)
		if status == "True" {
			return status, ""
		}
		reason, _ := condition["reason"].(string)
		message, _ := condition["message"].(string)
		return status, "(" + reason + ": " + message + ")"
	}
	return "Unknown", ""
}

func label(o *unstructured.Unstructured) string {
	text := strings.ToLower(o.GetKind()) + " " + o.GetName()
	if o.GetNamespace() != "" {
		text += " in " + o.GetNamespace()
	}
	return text
}

// Uninstall deletes the manifests' objects for a server of that name in that namespace. It deletes the APIServices
// first, and waits until they are gone: as long as an APIService points to a missing server, the cluster deletes no
// namespace. Volumes and the namespace are kept unless deleteData is set.
func (c *Cluster) Uninstall(ctx context.Context, name, namespace string, deleteData, dryRun bool, timeout time.Duration) error {
	selector := nameLabel + "=" + name
	found := 0
	remove := func(resource schema.GroupVersionResource, in string, only func(*unstructured.Unstructured) bool) ([]string, error) {
		var client dynamic.ResourceInterface = c.dynamic.Resource(resource)
		if in != "" {
			client = c.dynamic.Resource(resource).Namespace(in)
		}
		list, err := client.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if apierrors.IsNotFound(err) {
			return nil, nil // the cluster does not have that kind
		}
		if err != nil {
			return nil, fmt.Errorf("uninstall: list %s: %w", resource.Resource, err)
		}
		var names []string
		for i := range list.Items {
			o := &list.Items[i]
			if only != nil && !only(o) {
				continue
			}
			found++
			if dryRun {
				c.Say("%s deleted (dry run)", label(o))
				continue
			}
			uid := o.GetUID()
			err := client.Delete(
				ctx,
				o.GetName(),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationBackground)},
			)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("uninstall: delete %s: %w", label(o), err)
			}
			c.Say("%s deleted", label(o))
			names = append(names, o.GetName())
		}
		return names, nil
	}

	ours := func(o *unstructured.Unstructured) bool {
		serviceName, _, _ := unstructured.NestedString(o.Object, "spec", "service", "name")
		serviceNamespace, _, _ := unstructured.NestedString(o.Object, "spec", "service", "namespace")
		return serviceName == "" || serviceName == name && serviceNamespace == namespace
	}
	names, err := remove(apiServices, "", ours)
	if err != nil {
		return err
	}
	if err := c.awaitGone(ctx, names, timeout); err != nil {
		return err
	}
	scoped := name + "." + namespace + ":"
	named := func(o *unstructured.Unstructured) bool { return strings.HasPrefix(o.GetName(), scoped) }
	for _, of := range uninstallOrder {
		if of.resource.Resource == "persistentvolumeclaims" && !deleteData {
			continue
		}
		in, only := namespace, of.only
		if of.elsewhere {
			in, only = of.namespace, named
		}
		if _, err := remove(of.resource, in, only); err != nil {
			return err
		}
	}
	if found == 0 {
		return fmt.Errorf("uninstall: no objects of a server %s found in the namespace %s", name, namespace)
	}
	if !deleteData {
		c.Say("kept the namespace %s and its volumes: to delete them, use --delete-data", namespace)
		return nil
	}
	return c.deleteNamespace(ctx, name, namespace, dryRun)
}

func (c *Cluster) awaitGone(ctx context.Context, names []string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, name := range names {
		err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
			_, err := c.dynamic.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
		if err != nil {
			return fmt.Errorf("uninstall: apiservice %s still exists after %s; nothing else was deleted", name, timeout)
		}
	}
	return nil
}

// deleteNamespace deletes the server's namespace, if it was created from the manifests.
func (c *Cluster) deleteNamespace(ctx context.Context, name, namespace string, dryRun bool) error {
	namespaces := c.dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	o, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("uninstall: get the namespace %s: %w", namespace, err)
	case o.GetLabels()[nameLabel] != name:
		c.Say("kept the namespace %s, which does not have the label %s=%s", namespace, nameLabel, name)
		return nil
	case dryRun:
		c.Say("namespace %s deleted (dry run)", namespace)
		return nil
	}
	if err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("uninstall: delete the namespace %s: %w", namespace, err)
	}
	c.Say("namespace %s deleted", namespace)
	return nil
}

// removal is a kind of objects to delete: in the server's namespace, or elsewhere with the server's name.
type removal struct {
	resource  schema.GroupVersionResource
	elsewhere bool
	namespace string
	only      func(*unstructured.Unstructured) bool
}

// uninstallOrder is the reverse of the order of application. Workloads are deleted before their permissions.
var uninstallOrder = slices.Concat(
	in("monitoring.coreos.com", "servicemonitors"), in("policy", "poddisruptionbudgets"),
	in("apps", "deployments", "statefulsets"),
	in("networking.k8s.io", "networkpolicies"), in("", "services"),
	in("cert-manager.io/v1", "certificates", "issuers"),
	in("rbac.authorization.k8s.io", "rolebindings", "roles"),
	[]removal{
		{resource: rbac("rolebindings"), elsewhere: true, namespace: metav1.NamespaceSystem},
		{resource: rbac("clusterrolebindings"), elsewhere: true},
		{resource: rbac("clusterroles"), elsewhere: true},
	},
	in("coordination.k8s.io", "leases"), in("", "secrets", "serviceaccounts", "persistentvolumeclaims"),
)

func in(group string, resources ...string) []removal {
	var all []removal
	for _, resource := range resources {
		all = append(all, removal{resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}})
	}
	return all
}

func rbac(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
}
