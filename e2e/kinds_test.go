package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// examples are the fields that objects of a resource need beside a name, if the server sets none itself.
var examples = map[string]map[string]any{
	"events":      {"involvedObject": map[string]any{"namespace": "default"}},
	"limitranges": {"spec": map[string]any{"limits": []any{}}},
	"leasecandidates": {"spec": map[string]any{
		"leaseName": "one", "binaryVersion": "1.0.0", "emulationVersion": "1.0.0", "strategy": "OldestEmulationVersion",
	}},
	"podtemplates": {
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "one", "image": "one"}}}},
	},
	"services":                 {"spec": map[string]any{"type": "ExternalName", "externalName": "one.example.com"}},
	"rolebindings":             {"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "one"}},
	"storageversionmigrations": {"spec": map[string]any{"resource": map[string]any{"group": "", "resource": "configmaps"}}},
	"validatingadmissionpolicies": {"spec": map[string]any{
		"matchConstraints": map[string]any{
			"resourceRules": []any{
				map[string]any{
					"apiGroups":   []any{"none.example.com"},
					"apiVersions": []any{"v1"},
					"operations":  []any{"CREATE"},
					"resources":   []any{"nones"},
				},
			},
		},
		"validations": []any{map[string]any{"expression": "true"}},
	}},
	"validatingadmissionpolicybindings": {"spec": map[string]any{"policyName": "one", "validationActions": []any{"Deny"}}},
	"mutatingadmissionpolicies": {"spec": map[string]any{
		"matchConstraints": map[string]any{
			"resourceRules": []any{
				map[string]any{
					"apiGroups":   []any{"none.example.com"},
					"apiVersions": []any{"v1"},
					"operations":  []any{"CREATE"},
					"resources":   []any{"nones"},
				},
			},
		},
		"reinvocationPolicy": "Never",
		"mutations": []any{
			map[string]any{"patchType": "ApplyConfiguration", "applyConfiguration": map[string]any{"expression": "Object{}"}},
		},
	}},
	"mutatingadmissionpolicybindings": {"spec": map[string]any{"policyName": "one"}},
}

// Informers of all kinds of a control plane, including kinds of definitions, sync, see changes, and resume after a
// restart without getting all objects again.
func TestInformers_fortyKinds_resumeAfterKill(t *testing.T) {
	t.Parallel()
	s := startServerOn(t, "annex", restartPort(t))
	config := s.config(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testwait.Patience)
	defer cancel()
	client := dynamic.NewForConfigOrDie(config)
	for i := range 20 {
		define(ctx, t, client, fmt.Sprintf("group%d.example.com", i%4), fmt.Sprintf("kind%d", i))
	}
	var all []*watched
	for _, kind := range kindsOf(t, config) {
		all = append(all, startInformer(ctx, t, config, kind))
	}
	if len(all) < 40 {
		t.Fatalf("%d kinds are not 40", len(all))
	}
	t.Logf("%d kinds", len(all))
	for _, w := range all {
		w.sync(ctx, t)
		w.change(ctx, t, client, "before")
	}
	s.kill(t)
	s.start(t)
	for _, w := range all {
		w.change(ctx, t, client, "after")
		w.traffic.checkOneStart(t, w.resource.String())
	}
}

// define creates a kind whose objects may have any content, and waits until it is served.
func define(ctx context.Context, t *testing.T, client dynamic.Interface, group, kind string) {
	t.Helper()
	definitions := client.Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	)
	plural := strings.ToLower(kind) + "s"
	d := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"plural": plural, "kind": strings.ToUpper(kind[:1]) + kind[1:]},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if _, err := definitions.Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, d.GetName(), func(ctx context.Context) error {
		found, err := definitions.Get(ctx, d.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
		if !slices.ContainsFunc(conditions, func(c any) bool {
			condition, _ := c.(map[string]any)
			return condition["type"] == "Established" && condition["status"] == "True"
		}) {
			return errors.New("not established")
		}
		return nil
	})
}

// kindsOf returns all watchable resources, in their preferred versions.
func kindsOf(t *testing.T, config *rest.Config) []metav1.APIResource {
	t.Helper()
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	var all []metav1.APIResource
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"create", "list", "watch", "patch"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			resource.Group, resource.Version = version.Group, version.Version
			all = append(all, resource)
		}
	}
	return all
}

// watched is an informer of one kind, with the object that the test changes.
type watched struct {
	kind     metav1.APIResource
	resource schema.GroupVersionResource
	informer cache.SharedIndexInformer
	traffic  *traffic
	object   cache.ObjectName
}

func startInformer(ctx context.Context, t *testing.T, config *rest.Config, kind metav1.APIResource) *watched {
	t.Helper()
	w := &watched{kind: kind, resource: schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: kind.Name}}
	config, w.traffic = countingTraffic(config, kind.Name)
	w.informer = dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0).ForResource(w.resource).Informer()
	background(ctx, t, func(ctx context.Context) error {
		w.informer.RunWithContext(ctx)
		return nil
	})
	return w
}

func (w *watched) sync(ctx context.Context, t *testing.T) {
	t.Helper()
	if !cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced) {
		t.Fatalf("the informer of %s did not sync", w.resource)
	}
}

// change annotates an object, creating it if there is none, and waits until the informer has it.
func (w *watched) change(ctx context.Context, t *testing.T, client dynamic.Interface, value string) {
	t.Helper()
	const annotation = "e2e.example.com/changed"
	if w.object == (cache.ObjectName{}) {
		w.object = w.choose(ctx, t, client)
	}
	patch := []byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation, value))
	if _, err := w.objects(client).Patch(ctx, w.object.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("%s: %v", w.resource, err)
	}
	testwait.Until(t, w.resource.String()+" is seen", func() bool {
		obj, found, err := w.informer.GetStore().GetByKey(w.object.String())
		return err == nil && found && obj.(*unstructured.Unstructured).GetAnnotations()[annotation] == value
	})
}

func (w *watched) objects(client dynamic.Interface) dynamic.ResourceInterface {
	if w.kind.Namespaced {
		return client.Resource(w.resource).Namespace(w.object.Namespace)
	}
	return client.Resource(w.resource)
}

func (w *watched) choose(ctx context.Context, t *testing.T, client dynamic.Interface) cache.ObjectName {
	t.Helper()
	if keys := w.informer.GetStore().ListKeys(); len(keys) > 0 {
		slices.Sort(keys)
		name, err := cache.ParseObjectName(keys[0])
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range examples[w.kind.Name] {
		obj.Object[field] = value
	}
	obj.SetAPIVersion(w.resource.GroupVersion().String())
	obj.SetKind(w.kind.Kind)
	obj.SetName("one")
	if w.kind.Namespaced {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	w.object = cache.MetaObjectToName(obj)
	if _, err := w.objects(client).Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatalf("%s: %v", w.resource, err)
	}
	return w.object
}
