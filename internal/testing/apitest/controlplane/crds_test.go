package controlplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

func cluster() annex.Server {
	return annex.Server{Name: "cluster", ControlPlane: controlplane.New(controlplane.Options{})}
}

type schemaOf = apiextensionsv1.JSONSchemaProps

// widgets returns the definition of widgets.stable.example.com, whose spec has the given properties.
func widgets(properties map[string]schemaOf) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.stable.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "stable.example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources:     &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schemaOf{
					Type: "object",
					Properties: map[string]schemaOf{
						"spec":   {Type: "object", Properties: properties},
						"status": {Type: "object", Properties: map[string]schemaOf{"ready": {Type: "boolean"}}},
					},
				}},
			}},
		},
	}
}

var sizeAndColor = map[string]schemaOf{"size": {Type: "integer"}, "color": {Type: "string"}}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stable.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// clients are the clients of a definition and of its resources in the namespace default.
type clients struct {
	definitions *clientset.Clientset
	discovery   *discovery.DiscoveryClient
	widgets     dynamic.ResourceInterface
}

func clientsOf(config *rest.Config) clients {
	return clients{
		definitions: clientset.NewForConfigOrDie(config),
		discovery:   discovery.NewDiscoveryClientForConfigOrDie(config),
		widgets: dynamic.NewForConfigOrDie(config).
			Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "widgets"}).
			Namespace("default"),
	}
}

// define creates a definition and waits until it is established. Upstream serves a definition earlier, as soon as
// its names are accepted, but leaves the objects created until then behind if the definition is deleted before it
// is established.
func (c clients) define(t *testing.T, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	definitions := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the definition is established and served", func(ctx context.Context) error {
		is, err := definitions.Get(ctx, d.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !apihelpers.IsCRDConditionTrue(is, apiextensionsv1.Established) {
			return fmt.Errorf("its conditions are %v", is.Status.Conditions)
		}
		_, err = c.widgets.List(ctx, metav1.ListOptions{})
		return err
	})
}

// redefine changes a definition, whose status the server may be writing at the same time.
func (c clients) redefine(t *testing.T, name string, change func(*apiextensionsv1.CustomResourceDefinition)) {
	t.Helper()
	definitions := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		d, err := definitions.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(d)
		_, err = definitions.Update(t.Context(), d, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestCRDs_define_servesResource(t *testing.T) {
	t.Parallel()
	c := clientsOf(annextest.Start(t, cluster()))
	c.define(t, widgets(sizeAndColor))
	for name, color := range map[string]string{"a": "red", "b": "blue"} {
		made, err := c.widgets.Create(
			t.Context(),
			widget(name, map[string]any{"size": int64(3), "color": color, "unknown": "x"}),
			metav1.CreateOptions{},
		)
		if err != nil {
			t.Fatal(err)
		}
		if spec := made.Object["spec"]; fmt.Sprint(spec) != "map[color:"+color+" size:3]" {
			t.Errorf("created with %v, which is not pruned", spec)
		}
	}
	if _, err := c.widgets.Create(
		t.Context(),
		widget("c", map[string]any{"size": "large"}),
		metav1.CreateOptions{},
	); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), `spec.size: Invalid value: "string": spec.size in body must be of type integer`) {
		t.Errorf("a size that is no number: %v", err)
	}
	red, err := c.widgets.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.color=red"})
	if err != nil || len(red.Items) != 1 || red.Items[0].GetName() != "a" {
		t.Errorf("of a field: %v, %v", red, err)
	}
	a := red.Items[0].DeepCopy()
	a.Object["status"] = map[string]any{"ready": true}
	if a, err = c.widgets.UpdateStatus(t.Context(), a, metav1.UpdateOptions{}); err != nil || a.GetGeneration() != 1 {
		t.Errorf("status: %v, %v", a, err)
	}
	if _, err = c.widgets.Patch(
		t.Context(),
		"b",
		"application/merge-patch+json",
		[]byte(`{"spec":{"size":4}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Error(err)
	}
	_, err = c.widgets.Apply(t.Context(), "d", widget("d", map[string]any{"size": int64(1)}), metav1.ApplyOptions{FieldManager: "test"})
	if err != nil {
		t.Error(err)
	}
}

func TestCRDs_discoveryAndOpenAPI(t *testing.T) {
	t.Parallel()
	c := clientsOf(annextest.Start(t, cluster()))
	c.define(t, widgets(sizeAndColor))
	has := func(path, wanted string) {
		t.Helper()
		testwait.NoError(t, path, func(ctx context.Context) error {
			body, err := c.discovery.RESTClient().Get().RequestURI(path).SetHeader("Accept", "application/json").DoRaw(ctx)
			if err == nil && !strings.Contains(string(body), wanted) {
				err = fmt.Errorf("%s is not in %s", wanted, body)
			}
			return err
		})
	}
	has("/apis", `"stable.example.com/v1"`)
	has("/apis", `"apiextensions.k8s.io/v1"`)
	has("/apis/stable.example.com", `"preferredVersion":{"groupVersion":"stable.example.com/v1"`)
	has("/apis/stable.example.com/v1", `"name":"widgets/status"`)
	has("/openapi/v3", "apis/stable.example.com/v1")
	has("/openapi/v3/apis/stable.example.com/v1", "com.example.stable.v1.Widget")
	has("/openapi/v3/apis/apiextensions.k8s.io/v1", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}/status")
	has("/openapi/v2", "com.example.stable.v1.Widget")
	has("/openapi/v2", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
	testwait.NoError(t, "the aggregated document", func(context.Context) error {
		_, lists, err := c.discovery.ServerGroupsAndResources()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool { return l.GroupVersion == "stable.example.com/v1" }) {
			return fmt.Errorf("not in %v", lists)
		}
		return nil
	})
}

func TestCRDs_changedDefinition_endsWatches(t *testing.T) {
	t.Parallel()
	c := clientsOf(annextest.Start(t, cluster()))
	definition := widgets(sizeAndColor)
	c.define(t, definition)
	if _, err := c.widgets.Create(t.Context(), widget("a", map[string]any{"size": int64(3)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := c.widgets.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event := <-w.ResultChan(); event.Type != watch.Added {
		t.Fatalf("%v", event)
	}
	c.redefine(t, definition.Name, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["color"] = schemaOf{
			Type:    "string",
			Default: &apiextensionsv1.JSON{Raw: []byte(`"green"`)},
		}
	})
	select {
	case event, more := <-w.ResultChan():
		if more {
			t.Errorf("the watch goes on: %v", event)
		}
	case <-time.After(time.Minute):
		t.Error("the watch does not end")
	}
	got, err := c.widgets.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || fmt.Sprint(got.Object["spec"]) != "map[color:green size:3]" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCRDs_deletedDefinition_deletesResources(t *testing.T) {
	t.Parallel()
	c := clientsOf(annextest.Start(t, cluster()))
	definition := widgets(sizeAndColor)
	c.define(t, definition)
	if _, err := c.widgets.Create(t.Context(), widget("a", map[string]any{}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.definitions.ApiextensionsV1().
		CustomResourceDefinitions().
		Delete(t.Context(), definition.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "all is gone", func(ctx context.Context) error {
		if _, err := c.definitions.ApiextensionsV1().
			CustomResourceDefinitions().
			Get(ctx, definition.Name, metav1.GetOptions{}); !apierrors.IsNotFound(
			err,
		) {
			return fmt.Errorf("the definition: %w", err)
		}
		if _, err := c.widgets.List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("a list: %w", err)
		}
		groups, err := c.discovery.ServerGroups()
		if err == nil && slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == "stable.example.com" }) {
			err = fmt.Errorf("the group is still there: %v", groups)
		}
		return err
	})
	c.define(t, widgets(sizeAndColor))
	if list, err := c.widgets.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("defined anew: %v, %v", list, err)
	}
}

func TestCRDs_restart_keepsResources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	options := annex.Options{Storage: embedded.Dir(""), DataDir: dir}
	t.Run("before", func(t *testing.T) {
		c := clientsOf(annextest.StartWith(t, cluster(), options))
		c.define(t, widgets(sizeAndColor))
		if _, err := c.widgets.Create(t.Context(), widget("a", map[string]any{"size": int64(3)}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("after", func(t *testing.T) {
		c := clientsOf(annextest.StartWith(t, cluster(), options))
		got, err := c.widgets.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || fmt.Sprint(got.Object["spec"]) != "map[size:3]" {
			t.Errorf("as soon as the server is ready: %v, %v", got, err)
		}
	})
}

func TestCRDs_rejections(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c := clientsOf(config)
	own := widgets(sizeAndColor)
	own.Name, own.Spec.Group = "widgets.rbac.authorization.k8s.io", "rbac.authorization.k8s.io"
	own.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, a test"}
	_, err := c.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), own, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "spec.group: the group rbac.authorization.k8s.io belongs to built-in kinds of this server and "+
			"cannot have custom resources: choose another group") {
		t.Errorf("a group of the server: %v", err)
	}
	c.define(t, widgets(sizeAndColor))
	nowhere := dynamic.NewForConfigOrDie(config).
		Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "widgets"}).
		Namespace("nowhere")
	if _, err := nowhere.Create(
		t.Context(),
		widget("a", nil),
		metav1.CreateOptions{},
	); !apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), `namespaces "nowhere" not found`) {
		t.Errorf("a namespace that is not there: %v", err)
	}
	_, err = annex.New(t.Context(), cluster(), annex.Options{Aggregated: true, Storage: memory.Storage()})
	if err == nil || !strings.Contains(err.Error(), "Options.Aggregated and Server.ControlPlane exclude each other") {
		t.Errorf("aggregated: %v", err)
	}
}
