package coreapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func (s *server) create(t testing.TB, ns *corev1.Namespace) *corev1.Namespace {
	t.Helper()
	created, err := s.namespaces.Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func (s *server) get(t testing.TB, name string) *corev1.Namespace {
	t.Helper()
	ns, err := s.namespaces.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func (s *server) delete(t testing.TB, name string) {
	t.Helper()
	if err := s.namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func widget(name string, finalizers ...string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget",
		"spec": map[string]any{"size": "small"},
	}}
	w.SetName(name)
	w.SetFinalizers(finalizers)
	return w
}

func (s *server) createWidget(t testing.TB, namespace string, w *unstructured.Unstructured) {
	t.Helper()
	if _, err := s.widgets.Namespace(namespace).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// await watches a namespace until done returns true. A removed namespace is passed as nil.
func (s *server) await(t testing.TB, name string, done func(*corev1.Namespace) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	one := metav1.SingleObject(metav1.ObjectMeta{Name: name})
	list, err := s.namespaces.List(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	var last *corev1.Namespace
	if len(list.Items) == 1 {
		last = &list.Items[0]
	}
	if done(last) {
		return
	}
	one.ResourceVersion = list.ResourceVersion
	w, err := s.namespaces.Watch(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		ns, ok := event.Object.(*corev1.Namespace)
		if !ok {
			t.Fatalf("watch: %v", event.Object)
		}
		if last = ns; event.Type == watch.Deleted {
			last = nil
		}
		if done(last) {
			return
		}
	}
	t.Fatalf("the watch ended with %+v", last)
}

func gone(ns *corev1.Namespace) bool { return ns == nil }

func TestNamespaces_create(t *testing.T) {
	s := start(t)
	for _, test := range []struct {
		name  string
		given *corev1.Namespace
		want  []corev1.FinalizerName
	}{
		{"by name", namespace("lab"), []corev1.FinalizerName{"kubernetes"}},
		{"by generated name", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"}}, []corev1.FinalizerName{"kubernetes"}},
		{"with a finalizer of its own", &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "held"},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/hold"}},
		}, []corev1.FinalizerName{"example.com/hold", "kubernetes"}},
		{"with a status and a label that are not for users", &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: "liar", Labels: map[string]string{corev1.LabelMetadataName: "other"}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
		}, []corev1.FinalizerName{"kubernetes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.create(t, test.given)
			list, err := s.namespaces.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ns := list.Items[slices.IndexFunc(list.Items, func(ns corev1.Namespace) bool {
				return ns.Name == test.given.Name || test.given.Name == "" && strings.HasPrefix(ns.Name, test.given.GenerateName)
			})]
			if ns.Status.Phase != corev1.NamespaceActive || ns.UID == "" {
				t.Errorf("got %+v", ns)
			}
			if got := ns.Labels[corev1.LabelMetadataName]; got != ns.Name {
				t.Errorf("name label is %q, want %q", got, ns.Name)
			}
			if diff := cmp.Diff(test.want, ns.Spec.Finalizers); diff != "" {
				t.Errorf("finalizers: %s", diff)
			}
		})
	}
}

func TestNamespaces_create_noDuplicateErrors(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	_, err := s.namespaces.Patch(t.Context(), "lab", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"!"}}}`), metav1.PatchOptions{})
	var status apierrors.APIStatus
	if !errors.As(err, &status) || len(status.Status().Details.Causes) != 1 {
		t.Errorf("%+v", err)
	}
}

func TestNamespaces_create_invalid(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	for _, test := range []struct {
		name  string
		do    func(ctx context.Context) error
		field string
	}{
		{"name with a dot", func(ctx context.Context) error {
			_, err := s.namespaces.Create(ctx, namespace("a.b"), metav1.CreateOptions{})
			return err
		}, "metadata.name"},
		{"finalizer that is not qualified", func(ctx context.Context) error {
			ns := namespace("held")
			ns.Spec.Finalizers = []corev1.FinalizerName{"hold"}
			_, err := s.namespaces.Create(ctx, ns, metav1.CreateOptions{})
			return err
		}, "spec.finalizers[0]"},
		{"finalizer that is not a valid name", func(ctx context.Context) error {
			ns := s.get(t, "lab")
			ns.Spec.Finalizers = []corev1.FinalizerName{"kubernetes", "example.com/a b"}
			_, err := s.namespaces.Finalize(ctx, ns, metav1.UpdateOptions{})
			return err
		}, "spec.finalizers[1]"},
		{"phase Terminating of a namespace that is not being deleted", func(ctx context.Context) error {
			ns := s.get(t, "lab")
			ns.Status.Phase = corev1.NamespaceTerminating
			_, err := s.namespaces.UpdateStatus(ctx, ns, metav1.UpdateOptions{})
			return err
		}, "status.Phase"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.do(t.Context())
			status := apierrors.APIStatus(nil)
			if !apierrors.IsInvalid(err) || !asStatus(err, &status) {
				t.Fatalf("got %v, want Invalid", err)
			}
			causes := status.Status().Details.Causes
			if len(causes) != 1 || causes[0].Field != test.field {
				t.Errorf("causes %+v, want one at %s", causes, test.field)
			}
		})
	}
}

func asStatus(err error, to *apierrors.APIStatus) bool {
	status, ok := err.(apierrors.APIStatus)
	*to = status
	return ok
}

func TestNamespaces_endpoints_updateOwnPart(t *testing.T) {
	s := start(t)
	base := s.create(t, namespace("lab"))
	change := func() *corev1.Namespace {
		ns := s.get(t, "lab")
		ns.Labels["changed"] = "yes"
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, "example.com/hold")
		ns.Status.Conditions = []corev1.NamespaceCondition{{Type: "Changed", Status: corev1.ConditionTrue}}
		return ns
	}
	for _, test := range []struct {
		name               string
		update             func(ctx context.Context, ns *corev1.Namespace, options metav1.UpdateOptions) (*corev1.Namespace, error)
		finalizers, status bool
	}{
		{"main", s.namespaces.Update, false, false},
		{"status", s.namespaces.UpdateStatus, false, true},
		{"finalize", s.namespaces.Finalize, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.update(t.Context(), change(), metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if changed := len(got.Spec.Finalizers) != len(base.Spec.Finalizers); changed != test.finalizers {
				t.Errorf("finalizers changed: %v", changed)
			}
			if changed := len(got.Status.Conditions) > 0; changed != test.status {
				t.Errorf("status changed: %v", changed)
			}
		})
	}
}

func TestNamespaces_patchAndApply(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	for _, test := range []struct {
		kind  types.PatchType
		patch string
	}{
		{types.MergePatchType, `{"metadata":{"labels":{"a":"1"}}}`},
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"b":"2"}}}`},
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/c","value":"3"}]`},
		{types.ApplyPatchType, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"lab",` +
			`"labels":{"d":"4"}},"spec":{"finalizers":["example.com/x"]}}`},
	} {
		if _, err := s.namespaces.Patch(
			t.Context(),
			"lab",
			test.kind,
			[]byte(test.patch),
			metav1.PatchOptions{FieldManager: "test"},
		); err != nil {
			t.Errorf("%s: %v", test.kind, err)
		}
	}
	ns := s.get(t, "lab")
	want := map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", corev1.LabelMetadataName: "lab"}
	if diff := cmp.Diff(want, ns.Labels); diff != "" {
		t.Error(diff)
	}
	for _, entry := range ns.ManagedFields {
		if entry.Operation == metav1.ManagedFieldsOperationApply && strings.Contains(entry.FieldsV1.String(), "f:finalizers") {
			t.Errorf("the applier owns finalizers that it cannot set: %s", entry.FieldsV1)
		}
	}

	_, err := s.namespaces.Patch(t.Context(), "lab", types.ApplyPatchType, []byte(
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"lab","labels":{"a":"9"}}}`), metav1.PatchOptions{FieldManager: "other"})
	if !apierrors.IsConflict(err) {
		t.Errorf("applying a field of another manager: %v", err)
	}
	_, err = s.namespaces.Patch(t.Context(), "new", types.ApplyPatchType, []byte(
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"new"}}`), metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		t.Errorf("apply of a new namespace: %v", err)
	}
	_, err = s.namespaces.Patch(t.Context(), "lab", types.ApplyPatchType, []byte(
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"lab"},"status":{"conditions":[{"type":"Mine","status":"True"}]}}`),
		metav1.PatchOptions{FieldManager: "status"}, "status")
	if err != nil {
		t.Errorf("apply of the status: %v", err)
	}
}

func TestNamespaces_selectors(t *testing.T) {
	s := start(t)
	for _, name := range []string{"one", "two", "three"} {
		s.create(t, namespace(name))
	}
	s.delete(t, "three")
	for _, test := range []struct {
		options metav1.ListOptions
		want    []string
	}{
		{metav1.ListOptions{FieldSelector: "metadata.name=two"}, []string{"two"}},
		{metav1.ListOptions{FieldSelector: "status.phase=Terminating"}, []string{"three"}},
		{metav1.ListOptions{FieldSelector: "status.phase!=Terminating"}, []string{"one", "two"}},
		{metav1.ListOptions{LabelSelector: "kubernetes.io/metadata.name in (one, three)"}, []string{"one", "three"}},
	} {
		list, err := s.namespaces.List(t.Context(), test.options)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ns := range list.Items {
			got = append(got, ns.Name)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v: %s", test.options, diff)
		}
	}
	if _, err := s.namespaces.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.finalizers=x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("selector on a field that is not selectable: %v", err)
	}
}

func (s *server) request(t testing.TB, accept, path string) []byte {
	t.Helper()
	client, err := rest.HTTPClientFor(s.config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v: %s", path, response.Status, err, body)
	}
	return body
}

func TestNamespaces_table(t *testing.T) {
	s := start(t)
	s.create(t, namespace("lab"))
	var table metav1.Table
	if err := json.Unmarshal(s.request(t, "application/json;as=Table;v=v1;g=meta.k8s.io", "/api/v1/namespaces"), &table); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	if diff := cmp.Diff([]string{"Name", "Status", "Age"}, columns); diff != "" {
		t.Error(diff)
	}
	if len(table.Rows) != 1 || table.Rows[0].Cells[0] != "lab" || table.Rows[0].Cells[1] != "Active" ||
		table.Rows[0].Cells[2] == "<unknown>" {
		t.Errorf("rows %+v", table.Rows)
	}
}

func TestNamespaces_discovery(t *testing.T) {
	s := start(t)
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.ServerResourcesForGroupVersion("v1")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"namespaces":          {"create", "delete", "get", "list", "patch", "update", "watch"},
		"namespaces/finalize": {"update"},
		"namespaces/status":   {"get", "patch", "update"},
	}
	for _, r := range list.APIResources {
		if diff := cmp.Diff(want[r.Name], []string(r.Verbs)); diff != "" {
			t.Errorf("verbs of %s: %s", r.Name, diff)
		}
		if r.Namespaced || r.Kind != "Namespace" {
			t.Errorf("%+v", r)
		}
		if r.Name == "namespaces" && (r.SingularName != "namespace" || !slices.Equal(r.ShortNames, []string{"ns"})) {
			t.Errorf("names %q, %q", r.SingularName, r.ShortNames)
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestOpenAPI(t *testing.T) {
	s := start(t)
	var document struct {
		Components struct {
			Schemas map[string]struct {
				GVK        []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
				Properties map[string]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(s.request(t, "application/json", "/openapi/v3/api/v1"), &document); err != nil {
		t.Fatal(err)
	}
	ns := document.Components.Schemas["io.k8s.api.core.v1.Namespace"]
	if diff := cmp.Diff([]metav1.GroupVersionKind{{Version: "v1", Kind: "Namespace"}}, ns.GVK); diff != "" {
		t.Errorf("kinds: %s", diff)
	}
	for _, name := range []string{"apiVersion", "kind", "metadata", "spec", "status"} {
		if ns.Properties[name] == nil {
			t.Errorf("no property %s", name)
		}
	}
	conditions := string(document.Components.Schemas["io.k8s.api.core.v1.NamespaceStatus"].Properties["conditions"])
	if !strings.Contains(conditions, `"x-kubernetes-list-map-keys":["type"]`) {
		t.Errorf("conditions: %s", conditions)
	}
}

func TestNamespaces_delete(t *testing.T) {
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	t.Run("makes the namespace Terminating once", func(t *testing.T) {
		s := start(t)
		s.create(t, namespace("lab"))
		if err := s.namespaces.Delete(t.Context(), "lab", dry); err != nil {
			t.Fatal(err)
		}
		if ns := s.get(t, "lab"); ns.DeletionTimestamp != nil {
			t.Fatal("a dry run left a trace")
		}
		s.delete(t, "lab")
		first := s.get(t, "lab")
		if first.DeletionTimestamp == nil || first.Status.Phase != corev1.NamespaceTerminating {
			t.Fatalf("got %+v", first)
		}
		s.delete(t, "lab")
		if diff := cmp.Diff(first, s.get(t, "lab")); diff != "" {
			t.Errorf("the second delete changed it: %s", diff)
		}
	})
	t.Run("has no finalizer for a collector that there is not", func(t *testing.T) {
		s := start(t)
		s.create(t, namespace("lab"))
		orphan := metav1.DeletePropagationOrphan
		if err := s.namespaces.Delete(t.Context(), "lab", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
			t.Fatal(err)
		}
		if ns := s.get(t, "lab"); len(ns.Finalizers) > 0 {
			t.Errorf("%v", ns.Finalizers)
		}
	})
	t.Run("goes with the last finalizer of the spec", func(t *testing.T) {
		s := start(t)
		ns := namespace("lab")
		ns.Spec.Finalizers = []corev1.FinalizerName{"example.com/hold"}
		s.create(t, ns)
		s.delete(t, "lab")
		for _, rest := range [][]corev1.FinalizerName{{"example.com/hold"}, nil} {
			ns := s.get(t, "lab")
			ns.Spec.Finalizers = rest
			if _, err := s.namespaces.Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.namespaces.Get(t.Context(), "lab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("waits for finalizers of the metadata too", func(t *testing.T) {
		s := start(t)
		ns := namespace("lab")
		ns.Finalizers = []string{"example.com/hold"}
		s.create(t, ns)
		s.delete(t, "lab")
		ns = s.get(t, "lab")
		ns.Spec.Finalizers = nil
		if _, err := s.namespaces.Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		ns = s.get(t, "lab")
		ns.Finalizers = nil
		if _, err := s.namespaces.Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.namespaces.Get(t.Context(), "lab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an update that empties the metadata's finalizers leaves those of the spec", func(t *testing.T) {
		s := start(t)
		ns := namespace("lab")
		ns.Finalizers = []string{"example.com/hold"}
		s.create(t, ns)
		s.delete(t, "lab")
		ns = s.get(t, "lab")
		ns.Finalizers = nil
		if _, err := s.namespaces.Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if ns := s.get(t, "lab"); len(ns.Spec.Finalizers) != 1 {
			t.Errorf("got %+v", ns)
		}
	})
	t.Run("honours preconditions", func(t *testing.T) {
		s := start(t)
		ns := s.create(t, namespace("lab"))
		other, stale := types.UID("other"), "1"
		for name, p := range map[string]*metav1.Preconditions{"UID": {UID: &other}, "resource version": {ResourceVersion: &stale}} {
			if err := s.namespaces.Delete(t.Context(), "lab", metav1.DeleteOptions{Preconditions: p}); !apierrors.IsConflict(err) {
				t.Errorf("wrong %s: %v", name, err)
			}
		}
		if err := s.namespaces.Delete(
			t.Context(),
			"lab",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ns.UID, ResourceVersion: &ns.ResourceVersion}},
		); err != nil {
			t.Error(err)
		}
		if err := s.namespaces.Delete(
			t.Context(),
			"lab",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}},
		); !apierrors.IsConflict(
			err,
		) {
			t.Errorf("wrong UID of a namespace that is being deleted: %v", err)
		}
	})
	t.Run("of the missing is not found", func(t *testing.T) {
		s := start(t)
		if err := s.namespaces.Delete(t.Context(), "lab", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("of default is forbidden", func(t *testing.T) {
		s := start(t)
		if err := s.core.Bootstrap(t.Context(), s.config); err != nil {
			t.Fatal(err)
		}
		if err := s.core.Bootstrap(t.Context(), s.config); err != nil {
			t.Fatalf("when it exists: %v", err)
		}
		err := s.namespaces.Delete(t.Context(), "default", metav1.DeleteOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "this namespace may not be deleted") {
			t.Errorf("got %v", err)
		}
	})
}

// ways are the ways to create an object.
var ways = map[string]func(ctx context.Context, s *server, namespace string, w *unstructured.Unstructured, dryRun []string) error{
	"create": func(ctx context.Context, s *server, namespace string, w *unstructured.Unstructured, dryRun []string) error {
		_, err := s.widgets.Namespace(namespace).Create(ctx, w, metav1.CreateOptions{DryRun: dryRun})
		return err
	},
	"apply": func(ctx context.Context, s *server, namespace string, w *unstructured.Unstructured, dryRun []string) error {
		_, err := s.widgets.Namespace(namespace).Apply(ctx, w.GetName(), w, metav1.ApplyOptions{FieldManager: "test", DryRun: dryRun})
		return err
	},
}

func TestAdmission_missingOrTerminatingNamespace(t *testing.T) {
	s := start(t)
	s.create(t, namespace("dying"))
	s.createWidget(t, "dying", widget("old"))
	s.delete(t, "dying")
	for way, create := range ways {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			t.Run(way+strings.Join(dryRun, ""), func(t *testing.T) {
				err := create(t.Context(), s, "missing", widget("w"), dryRun)
				if !apierrors.IsNotFound(err) || err.Error() != `namespaces "missing" not found` {
					t.Errorf("missing namespace: %v", err)
				}
				err = create(t.Context(), s, "dying", widget("w"), dryRun)
				if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
					!strings.Contains(err.Error(), "because it is being terminated") {
					t.Errorf("terminating namespace: %v", err)
				}
			})
		}
	}
	t.Run("but updates are not", func(t *testing.T) {
		if err := ways["apply"](t.Context(), s, "dying", widget("old"), nil); err != nil {
			t.Error(err)
		}
	})
}

func TestAdmission_newNamespace_isUsableAtOnce(t *testing.T) {
	s := start(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.create(t, namespace(name))
		s.createWidget(t, name, widget("w"))
	}
}
