package main

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/annexapi/annex/annextest"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	v1 "example.com/guestbook/api/v1"
)

// A server of the definition that controller-gen writes is the measure, made of the
// libraries that it is made of.
type reference struct {
	schema *structuralschema.Structural
	// strategy prepares and validates.
	validate func(t *testing.T, u *unstructured.Unstructured) error
}

func newReference(t *testing.T) reference {
	t.Helper()
	data, err := os.ReadFile("../../config/crd/webapp.example.com_guestbooks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		t.Fatal(err)
	}
	strategy := customresource.NewStrategy(nil, true, v1.GroupVersion.WithKind("Guestbook"), rules, nil, s, &apiextensions.CustomResourceSubresourceStatus{}, nil, nil)
	return reference{s, func(t *testing.T, u *unstructured.Unstructured) error {
		strategy.PrepareForCreate(t.Context(), u)
		return strategy.Validate(t.Context(), u).ToAggregate()
	}}
}

// spec is that of the object that a document becomes.
func (r reference) spec(t *testing.T, doc *unstructured.Unstructured) (spec any, err error) {
	t.Helper()
	u := doc.DeepCopy()
	pruning.Prune(u.Object, r.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, r.schema)
	defaulting.Default(u.Object, r.schema)
	if err := r.validate(t, u); err != nil {
		return nil, err
	}
	return u.Object["spec"], nil
}

func object(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "Guestbook", "metadata": map[string]any{"name": "a", "namespace": "default"},
	}}
	var content any
	if err := json.Unmarshal([]byte(spec), &content); err != nil {
		t.Fatal(err)
	}
	u.Object["spec"] = runtime.DeepCopyJSONValue(integers(content))
	return u
}

// integers are what a decoder of Kubernetes makes of whole numbers.
func integers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			value[k] = integers(v)
		}
	case []any:
		for i, v := range value {
			value[i] = integers(v)
		}
	case float64:
		return int64(value)
	}
	return value
}

func TestObjectsAreThoseOfTheCRD(t *testing.T) {
	guestbooks := dynamic.NewForConfigOrDie(annextest.Start(t, server())).Resource(v1.GroupVersion.WithResource("guestbooks")).Namespace("default")
	crd := newReference(t)
	kept := 0
	for _, spec := range []string{
		`{}`,
		`{"copies": 0}`,
		`{"copies": 0, "public": false, "greeting": ""}`,
		`{"copies": 7, "public": true, "greeting": "hi", "paper": "Letter"}`,
		`{"limits": {}}`,
		`{"limits": {"length": 7, "perDay": 0}}`,
		`{"pages": 0}`,
		`{"entries": [{"name": "ada"}, {"name": "bob", "stars": 0}]}`,
		`{"copies": null, "public": null}`,
		`{"copies": -1}`,
		`{"copies": 100}`,
		`{"copies": 100, "public": false}`,
		`{"greeting": "a greeting that is too long"}`,
		`{"paper": ""}`,
		`{"entries": [{"name": "", "stars": 6}]}`,
		`{"entries": [{"name": "ada"}, {"name": "ada"}]}`,
	} {
		want, refused := crd.spec(t, object(t, spec))
		made, err := guestbooks.Create(t.Context(), object(t, spec), metav1.CreateOptions{})
		switch {
		case refused != nil:
			if !apierrors.IsInvalid(err) {
				t.Errorf("%s: %v, a CRD server says %v", spec, err, refused)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v, a CRD server takes it", spec, err)
			continue
		}
		kept++
		stored, err := guestbooks.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for what, got := range map[string]any{"the answer": made.Object["spec"], "what is stored": stored.Object["spec"]} {
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s is %v, a CRD server's %v", spec, what, got, want)
			}
		}
		if err := guestbooks.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if kept < 8 {
		t.Errorf("only %d documents were taken", kept)
	}
}

func TestAnExplicitZeroOutlivesPatches(t *testing.T) {
	guestbooks := dynamic.NewForConfigOrDie(annextest.Start(t, server())).Resource(v1.GroupVersion.WithResource("guestbooks")).Namespace("default")
	if _, err := guestbooks.Create(t.Context(), object(t, `{"entries": [{"name": "ada"}]}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []struct {
		kind       types.PatchType
		body, want string
	}{
		{types.MergePatchType, `{"spec": {"copies": 0}}`, `{"copies": 0, "public": true, "greeting": "welcome", "paper": "A4", "limits": {"length": 80, "perDay": 10}, "entries": [{"name": "ada", "stars": 3}]}`},
		{types.JSONPatchType, `[{"op": "replace", "path": "/spec/entries/0/stars", "value": 0}]`, `{"copies": 0, "public": true, "greeting": "welcome", "paper": "A4", "limits": {"length": 80, "perDay": 10}, "entries": [{"name": "ada", "stars": 0}]}`},
		{types.MergePatchType, `{"metadata": {"labels": {"a": "b"}}}`, `{"copies": 0, "public": true, "greeting": "welcome", "paper": "A4", "limits": {"length": 80, "perDay": 10}, "entries": [{"name": "ada", "stars": 0}]}`},
		{types.MergePatchType, `{"spec": {"copies": null}}`, `{"copies": 1, "public": true, "greeting": "welcome", "paper": "A4", "limits": {"length": 80, "perDay": 10}, "entries": [{"name": "ada", "stars": 0}]}`},
	} {
		got, err := guestbooks.Patch(t.Context(), "a", patch.kind, []byte(patch.body), metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("%s: %v", patch.body, err)
		}
		if want := object(t, patch.want).Object["spec"]; !reflect.DeepEqual(got.Object["spec"], want) {
			t.Errorf("%s makes it %v, want %v", patch.body, got.Object["spec"], want)
		}
	}
}
