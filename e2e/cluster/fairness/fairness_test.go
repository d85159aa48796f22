package fairness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/e2e/cluster/alone"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const (
	invalidFile = "../../../internal/standalone/fairness/testdata/invalid.yaml"
	apis        = "/apis/flowcontrol.apiserver.k8s.io/v1"
)

var resources = map[string]string{"FlowSchema": "flowschemas", "PriorityLevelConfiguration": "prioritylevelconfigurations"}

// written is an object with a server's errors about it, or its stored form.
type written struct {
	Name   string         `json:"name"`
	Kind   string         `json:"kind"`
	Old    map[string]any `json:"old,omitempty"`
	Object map[string]any `json:"object"`
	Errors []string       `json:"errors,omitempty"`
}

// write sends an object, and returns the response.
func write(
	ctx context.Context,
	client rest.Interface,
	verb, path, kind string,
	object map[string]any,
	dry bool,
) (*unstructured.Unstructured, error) {
	body := maps.Clone(object)
	body["apiVersion"], body["kind"] = "flowcontrol.apiserver.k8s.io/v1", kind
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request := client.Verb(verb).AbsPath(path).Body(encoded).SetHeader("Content-Type", "application/json")
	if dry {
		request.Param("dryRun", metav1.DryRunAll)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil { // Raw's has no causes
		return nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}
	answer := &unstructured.Unstructured{}
	return answer, answer.UnmarshalJSON(raw)
}

// ask writes the object, leaving nothing behind, and returns the stored form and the errors.
func (w written) ask(ctx context.Context, client rest.Interface) (spec any, mistakes []string, err error) {
	path, object := apis+"/"+resources[w.Kind], w.Object
	verb := "POST"
	if w.Old != nil {
		old, err := write(ctx, client, verb, path, w.Kind, w.Old, false)
		if err != nil {
			return nil, nil, err
		}
		verb, path = "PUT", path+"/"+old.GetName()
		object = maps.Clone(object)
		metadata := maps.Clone(object["metadata"].(map[string]any))
		metadata["resourceVersion"] = old.GetResourceVersion() // kube-apiserver does not need it
		object["metadata"] = metadata
		defer func() { err = errors.Join(err, client.Delete().AbsPath(path).Do(ctx).Error()) }()
	}
	answer, err := write(ctx, client, verb, path, w.Kind, object, true)
	for apierrors.IsConflict(err) && ctx.Err() == nil { // the server has written the status
		raw, reading := client.Get().AbsPath(path).Do(ctx).Raw()
		now := &unstructured.Unstructured{}
		if err := errors.Join(reading, now.UnmarshalJSON(raw)); err != nil {
			return nil, nil, err
		}
		object["metadata"].(map[string]any)["resourceVersion"] = now.GetResourceVersion()
		answer, err = write(ctx, client, verb, path, w.Kind, object, true)
	}
	if err == nil {
		return answer.Object["spec"], nil, nil
	}
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsAlreadyExists(err): // it has passed all other checks
		return "exists", nil, nil
	case !errors.As(err, &status) || status.Status().Details == nil || status.Status().Reason != metav1.StatusReasonInvalid:
		return nil, nil, err
	}
	for _, cause := range status.Status().Details.Causes {
		mistakes = append(mistakes, fmt.Sprintf("%s: %s: %s", cause.Type, cause.Field, cause.Message))
	}
	slices.Sort(mistakes)
	return nil, mistakes, nil
}

// A server rejects the same objects as kube-apiserver, with the same causes, and stores the others with the same
// defaults. The file has kube-apiserver's results, for the tests of the package; UPDATE=1 writes it.
func TestFairness_invalidObjects(t *testing.T) {
	text, err := os.ReadFile(invalidFile)
	if err != nil {
		t.Fatal(err)
	}
	var all []written
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	theirs, ours := admin.RESTClient(), serve(t).RESTClient()
	refused := 0
	for i := range all {
		w := &all[i]
		spec, mistakes, err := w.ask(t.Context(), theirs)
		if err != nil {
			t.Fatalf("%s: kube-apiserver: %v", w.Name, err)
		}
		w.Errors = mistakes
		if len(mistakes) > 0 {
			refused++
		}
		ownSpec, own, err := w.ask(t.Context(), ours)
		if err != nil || !slices.Equal(own, mistakes) || !reflect.DeepEqual(ownSpec, spec) {
			t.Errorf("%s: %q, %v, %v\nkube-apiserver: %q, %v", w.Name, own, ownSpec, err, mistakes, spec)
		}
	}
	t.Logf("%d objects, %d refused", len(all), refused)
	if refused < 60 || len(all)-refused < 30 {
		t.Error("too few to prove something")
	}
	want, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(invalidFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, want) {
		t.Errorf("%s has not what kube-apiserver says: UPDATE=1 go test ./fairness", invalidFile)
	}
}

func TestFairness_invalidConditions(t *testing.T) {
	ours := serve(t)
	for path, body := range map[string]string{
		"flowschemas/probes": `{"status":{"conditions":[{"type":"A",` +
			`"status":"Maybe"},{"type":"A","status":"False"},{"type":"","status":""},{"type":"B"}]}}`,
		"prioritylevelconfigurations/system": `{"status":{"conditions":[{"type":"A"},{"type":"A"},{"status":"True"}]}}`,
		// Fixed conditions of kube-apiserver, and conditions that people may set.
		"flowschemas/catch-all":              `{"status":{"conditions":[{"type":"A","status":"True"}]}}`,
		"prioritylevelconfigurations/exempt": `{"status":{"conditions":[]}}`,
	} {
		said := func(client rest.Interface) string {
			err := client.Patch("application/merge-patch+json").
				AbsPath(apis+"/"+path+"/status").
				Param("dryRun", metav1.DryRunAll).
				Body([]byte(body)).
				Do(t.Context()).
				Error()
			if err == nil {
				return "accepted"
			}
			return err.Error()
		}
		if own, their := said(ours.RESTClient()), said(admin.RESTClient()); own != their {
			t.Errorf("%s: %s\nkube-apiserver: %s", path, own, their)
		}
	}
}

// Every server begins with the same objects as kube-apiserver, status and managed fields included, and their tables
// are the same.
func TestFairness_mandatoryObjects(t *testing.T) {
	ours := serve(t)
	testwait.NoError(t, "all schemas have a status", func(ctx context.Context) error {
		for _, client := range []*kubernetes.Clientset{admin, ours} {
			list, err := client.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, s := range list.Items {
				if len(s.Status.Conditions) == 0 || s.Status.Conditions[0].Status != "False" {
					return fmt.Errorf("%s: %+v", s.Name, s.Status)
				}
			}
		}
		return nil
	})
	for _, resource := range resources {
		var lists [2]unstructured.UnstructuredList
		var tables [2]metav1.Table
		for i, client := range []*kubernetes.Clientset{admin, ours} {
			raw, err := client.RESTClient().Get().AbsPath(apis + "/" + resource).Do(t.Context()).Raw()
			if err != nil {
				t.Fatal(err)
			}
			if err := lists[i].UnmarshalJSON(raw); err != nil {
				t.Fatal(err)
			}
			for j := range lists[i].Items {
				plain(&lists[i].Items[j])
			}
			raw, err = client.RESTClient().
				Get().
				AbsPath(apis+"/"+resource).
				SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
				Do(t.Context()).
				Raw()
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &tables[i]); err != nil {
				t.Fatal(err)
			}
			// kube-apiserver sorts flow schemas by their precedence.
			slices.SortFunc(tables[i].Rows, func(a, b metav1.TableRow) int { return strings.Compare(a.Cells[0].(string), b.Cells[0].(string)) })
		}
		if len(lists[0].Items) != len(lists[1].Items) {
			t.Fatalf("%d %s, kube-apiserver has %d", len(lists[1].Items), resource, len(lists[0].Items))
		}
		for i, their := range lists[0].Items {
			if own := lists[1].Items[i]; !reflect.DeepEqual(own, their) {
				t.Errorf("%v\nkube-apiserver: %v", own, their)
			}
		}
		if !reflect.DeepEqual(tables[1].ColumnDefinitions, tables[0].ColumnDefinitions) {
			t.Errorf("columns %v\nkube-apiserver: %v", tables[1].ColumnDefinitions, tables[0].ColumnDefinitions)
		}
		for i, their := range tables[0].Rows {
			own, age := tables[1].Rows[i].Cells, slices.IndexFunc(
				tables[0].ColumnDefinitions,
				func(c metav1.TableColumnDefinition) bool { return c.Name == "Age" },
			)
			own[age], their.Cells[age] = nil, nil
			if !reflect.DeepEqual(own, their.Cells) {
				t.Errorf("%v\nkube-apiserver: %v", own, their.Cells)
			}
		}
	}
}

// plain removes the fields of an object that differ between any two servers.
func plain(o *unstructured.Unstructured) {
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetCreationTimestamp(metav1.Time{})
	fields := o.GetManagedFields()
	for i := range fields {
		fields[i].Time = nil
	}
	o.SetManagedFields(fields)
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		delete(c.(map[string]any), "lastTransitionTime")
	}
	if len(conditions) > 0 {
		_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions") // they are copies
	}
}

// serve runs a server with priority and fairness, and returns its administrator's client.
func serve(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(alone.Serve(t, "--enable-priority-and-fairness"))
	if err != nil {
		t.Fatal(err)
	}
	return client
}
