package annextest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// mostObjects bounds the objects of a resource that a report compares.
const mostObjects = 1000

// quiet returns a client configuration whose requests are not recorded and meet no fault.
func quiet(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return own{next} })
	return config
}

// own marks the requests that a report sends itself.
type own struct{ next http.RoundTripper }

func (o own) RoundTrip(r *http.Request) (*http.Response, error) {
	return o.next.RoundTrip(r.WithContext(context.WithValue(r.Context(), ownRequest{}, true)))
}

// revisionOf returns the resource version of the server's storage.
func revisionOf(ctx context.Context, config *rest.Config) (string, error) {
	client, err := dynamic.NewForConfig(quiet(config))
	if err != nil {
		return "", err
	}
	list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.GetResourceVersion(), nil
}

// gather adds the events and the changed objects since a moment to a report.
func (h *history) gather(ctx context.Context, t *reportText, config *rest.Config, since moment) {
	client, err := dynamic.NewForConfig(quiet(config))
	if err == nil {
		t.events, err = h.eventsSince(ctx, client, since)
	}
	if err != nil {
		t.notes = append(t.notes, "events could not be read: "+err.Error())
	}
	switch {
	case since.err != nil:
		t.notes = append(t.notes, "the objects at the beginning are not known: "+since.err.Error())
		return
	case since.revision == "":
		return
	}
	if now, err := revisionOf(ctx, config); err == nil && now == since.revision {
		return
	}
	resources, err := listable(quiet(config))
	if err != nil {
		t.notes = append(t.notes, "not all resources could be found: "+err.Error())
	}
	for _, resource := range resources {
		lines, err := h.objectsSince(ctx, client, resource, since.revision)
		if err != nil {
			t.notes = append(t.notes, fmt.Sprintf("%s could not be compared: %v", resource.GroupResource(), err))
		}
		t.objects = append(t.objects, lines...)
	}
}

// unlisted are resources that a report does not compare: events have a section of their own, and the renewal of leases is
// no change that a test looks for.
var unlisted = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}

// listable returns the resources whose objects can be listed, by name.
func listable(config *rest.Config) ([]schema.GroupVersionResource, error) {
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discoverer.ServerPreferredResources()
	var all []schema.GroupVersionResource
	for _, list := range lists {
		version, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, resource := range list.APIResources {
			name := version.WithResource(resource.Name)
			if slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "get") &&
				!strings.Contains(resource.Name, "/") && !slices.Contains(unlisted, name.GroupResource().String()) {
				all = append(all, name)
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.GroupResource().String(), b.GroupResource().String())
	})
	return all, err
}

// objectsSince returns lines about the objects of a resource that have changed since a revision.
func (h *history) objectsSince(
	ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, revision string,
) ([]string, error) {
	now, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: mostObjects})
	if err != nil {
		return nil, err
	}
	before, err := client.Resource(resource).List(ctx, metav1.ListOptions{
		Limit: mostObjects, ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	switch {
	case apierrors.IsNotFound(err):
		before = &unstructured.UnstructuredList{} // the resource itself is new
	case err != nil:
		return nil, fmt.Errorf("at the beginning: %w", err)
	case before.GetContinue() != "" || now.GetContinue() != "":
		return nil, fmt.Errorf("there are more than %d objects", mostObjects)
	}
	t := target{group: resource.Group, resource: resource.Resource}
	was, is := h.objects(t, before), h.objects(t, now)
	keys := slices.Collect(maps.Keys(was))
	for key := range is {
		if was[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var lines []string
	for _, key := range keys {
		sign := "~"
		switch {
		case was[key] == nil:
			sign = "+"
		case is[key] == nil:
			lines = append(lines, "- "+key)
			continue
		}
		different := changes(was[key], is[key])
		if len(different) == 0 {
			continue
		}
		lines = append(lines, sign+" "+key)
		for _, line := range different {
			lines = append(lines, "    "+line)
		}
	}
	return lines, nil
}

// keptByServer reports whether a server writes the object by itself, also after it is ready: an APIService of its own groups, by the
// label of kube-aggregator, or a suggested object of flow control, by the annotation of the apiserver library.
func keptByServer(obj *unstructured.Unstructured) bool {
	return obj.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] != "" ||
		obj.GetAnnotations()["apf.kubernetes.io/autoupdate-spec"] == "true"
}

// objects returns the objects of a list without confidential data and those that the server keeps, by resource and name. A new object
// of the same name is another one.
func (h *history) objects(t target, list *unstructured.UnstructuredList) map[string]map[string]any {
	all := map[string]map[string]any{}
	for i := range list.Items {
		if keptByServer(&list.Items[i]) {
			continue
		}
		obj := list.Items[i].Object
		h.redact.object(t, obj)
		key, _ := identity(t, obj)
		all[key] = obj
	}
	return all
}

// eventsSince returns a line for each event since a moment, in the order of their last occurrence.
func (h *history) eventsSince(ctx context.Context, client dynamic.Interface, since moment) ([]string, error) {
	resource := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: mostObjects})
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil // the server has no events
	case err != nil:
		return nil, err
	}
	events := slices.DeleteFunc(list.Items, func(e unstructured.Unstructured) bool {
		return since.revision != "" && !newer(e.GetResourceVersion(), since.revision)
	})
	slices.SortFunc(events, func(a, b unstructured.Unstructured) int {
		x, y := a.GetResourceVersion(), b.GetResourceVersion()
		switch {
		case x == y:
			return 0
		case newer(x, y):
			return 1
		}
		return -1
	})
	var lines []string
	for _, e := range events {
		h.redact.object(target{resource: "events"}, e.Object)
		lines = append(lines, eventLine(e.Object))
	}
	return lines, nil
}

// eventLine is an event as kubectl get events has it.
func eventLine(e map[string]any) string {
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(e, path...)
		return value
	}
	about := target{resource: strings.ToLower(text("involvedObject", "kind")), namespace: text("involvedObject", "namespace"),
		name: text("involvedObject", "name")}
	line := fmt.Sprintf("  %s %s %s %s: %s", text("type"), text("reason"), about.resource, about.object(), text("message"))
	if n, _, _ := unstructured.NestedInt64(e, "count"); n > 1 {
		line += fmt.Sprintf(" (%d times)", n)
	}
	return line
}
