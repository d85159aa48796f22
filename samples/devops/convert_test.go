package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"example.com/devops/apis/devops/v1alpha1"
	"example.com/devops/apis/devops/v1alpha3"
)

// Each version can represent the values of the other: random objects are converted there and back, as by the webhook.
func TestVersions_roundTrip(t *testing.T) {
	t.Run("Pipeline", func(t *testing.T) {
		thereAndBack[v1alpha3.Pipeline](t, "v1alpha3", "v1alpha1")
		thereAndBack[v1alpha1.Pipeline](t, "v1alpha1", "v1alpha3")
	})
	t.Run("PipelineRun", func(t *testing.T) {
		thereAndBack[v1alpha3.PipelineRun](t, "v1alpha3", "v1alpha1")
		thereAndBack[v1alpha1.PipelineRun](t, "v1alpha1", "v1alpha3")
	})
}

func thereAndBack[T any](t *testing.T, version, other string) {
	t.Helper()
	random := randfill.NewWithSeed(1).NilChance(0.4).NumElements(1, 3).Funcs(
		func(o *metav1.ObjectMeta, c randfill.Continue) {
			o.Name, o.Namespace = "n"+c.String(0), "ns"
			if c.Bool() {
				o.Annotations = map[string]string{"a": c.String(0)}
			}
		},
		func(m *metav1.TypeMeta, _ randfill.Continue) {
			m.APIVersion, m.Kind = group+"/"+version, reflect.TypeFor[T]().Name()
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<32), 0) },
		oneOf(v1alpha3.PlainPipeline, v1alpha3.MultiBranchPipeline), oneOf(v1alpha1.PlainPipeline, v1alpha1.MultiBranchPipeline),
		oneOf(
			v1alpha3.PhasePending,
			v1alpha3.PhaseRunning,
			v1alpha3.PhaseSucceeded,
			v1alpha3.PhaseFailed,
			v1alpha3.PhaseCancelled,
			v1alpha3.PhaseUnknown,
		),
		oneOf(v1alpha1.Queued, v1alpha1.Running, v1alpha1.Success, v1alpha1.Failure, v1alpha1.Aborted, v1alpha1.Unknown),
		oneOf(v1alpha3.Branch, v1alpha3.Tag, v1alpha3.PullRequest), oneOf("", v1alpha3.Stop),
		func(s *v1alpha3.SCM, c randfill.Continue) {
			c.FillNoCustom(s)
			s.RefName += "x" // not empty
		},
		func(s *v1alpha3.PipelineSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			unique(s.Steps, func(s *v1alpha3.Step) *string { return &s.Name })
			unique(s.Parameters, func(p *v1alpha3.ParameterDefinition) *string { return &p.Name })
		},
		func(s *v1alpha3.PipelineRunStatus, c randfill.Continue) {
			c.FillNoCustom(s)
			unique(s.Steps, func(s *v1alpha3.StepStatus) *string { return &s.Name })
		},
	)
	for i := range 1000 {
		before := new(T)
		random.Fill(before)
		raw, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		there, err := convert(raw, group+"/"+other)
		if err != nil {
			t.Fatal(err)
		}
		back, err := convert(there, group+"/"+version)
		if err != nil {
			t.Fatal(err)
		}
		var want, got any
		if err := errors.Join(json.Unmarshal(raw, &want), json.Unmarshal(back, &got)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s through %s (-before +after), object %d:\n%s\nit was %s", version, other, i, diff, there)
		}
	}
}

// oneOf sets a value to one of the given ones.
func oneOf[T any](values ...T) func(*T, randfill.Continue) {
	return func(v *T, c randfill.Continue) { *v = values[c.Intn(len(values))] }
}

// unique makes the names in a list unique.
func unique[T any](all []T, name func(*T) *string) {
	for i := range all {
		*name(&all[i]) += strings.Repeat("x", i+1)
	}
}

func TestConvert_editInOlderVersion_keepsNewerFields(t *testing.T) {
	timeout := int32(7)
	hub := &v1alpha3.Pipeline{
		Spec: v1alpha3.PipelineSpec{Steps: []v1alpha3.Step{{Name: "a", Script: "true"}, {Name: "b", Script: "false", TimeoutSeconds: &timeout}}},
	}
	hub.Annotations = map[string]string{"own": "yes"}
	older := &v1alpha1.Pipeline{}
	older.Annotations = hub.Annotations
	if err := v1alpha1.PipelineFromHub(hub, older); err != nil {
		t.Fatal(err)
	}
	if len(hub.Annotations) != 1 {
		t.Fatalf("the conversion has changed what it was given: %v", hub.Annotations)
	}
	older.Spec.Stages = older.Spec.Stages[1:]
	older.Spec.Stages[0].Sh = "true"
	back := &v1alpha3.Pipeline{}
	back.Annotations = older.Annotations
	if err := v1alpha1.PipelineToHub(older, back); err != nil {
		t.Fatal(err)
	}
	if len(back.Spec.Steps) != 1 || back.Spec.Steps[0].Script != "true" || *back.Spec.Steps[0].TimeoutSeconds != 7 ||
		len(back.Annotations) != 1 {
		t.Errorf("it became %+v, with %v", back.Spec.Steps, back.Annotations)
	}
}

func TestConvert_errors(t *testing.T) {
	for name, test := range map[string]struct{ object, to, want string }{
		"another group":    {`{"apiVersion":"v1","kind":"Pod"}`, "devops.devops.io/v1alpha3", "not both of the group"},
		"to another group": {`{"apiVersion":"devops.devops.io/v1alpha3","kind":"Pipeline"}`, "v1", "not both of the group"},
		"another version":  {`{"apiVersion":"devops.devops.io/v1alpha3","kind":"Pipeline"}`, "devops.devops.io/v2", "no such kind or version"},
		"another kind": {`{"apiVersion":"devops.devops.io/v1alpha1","kind":"Project"}`, "devops.devops.io/v1alpha3",
			"no such kind or version"},
		"no object": {`7`, "devops.devops.io/v1alpha3", "cannot unmarshal"},
		"another type": {`{"apiVersion":"devops.devops.io/v1alpha1","kind":"Pipeline","spec":7}`, "devops.devops.io/v1alpha3",
			"cannot unmarshal"},
		"a bad annotation": {`{"apiVersion":"devops.devops.io/v1alpha1","kind":"Pipeline",` +
			`"metadata":{"name":"p","annotations":{"devops.devops.io/v1alpha3":"x"}}}`, "devops.devops.io/v1alpha3", "convert Pipeline p to " +
			"devops.devops.io/v1alpha3: annotation devops.devops.io/v1alpha3: "},
		"the same version": {`{"apiVersion":"devops.devops.io/v1alpha1","kind":"Pipeline"}`, "devops.devops.io/v1alpha1", ""},
		"all that there is": {`{"apiVersion":"devops.devops.io/v1alpha1","kind":"PipelineRun","spec":{"stop":true}}`,
			"devops.devops.io/v1alpha3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u","desiredAPIVersion":"` + test.to +
				`","objects":[` + test.object + `]}}`
			answer := httptest.NewRecorder()
			answerConversion(answer, httptest.NewRequest(http.MethodPost, "/convert", strings.NewReader(body)))
			var review apiextensionsv1.ConversionReview
			if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil {
				t.Fatal(err)
			}
			if review.Response.UID != "u" || (review.Response.Result.Status == metav1.StatusSuccess) != (test.want == "") ||
				!strings.Contains(review.Response.Result.Message, test.want) {
				t.Errorf("the answer is %+v", review.Response)
			}
		})
	}
	for _, body := range []string{"", "7", "{}"} {
		answer := httptest.NewRecorder()
		answerConversion(answer, httptest.NewRequest(http.MethodPost, "/convert", strings.NewReader(body)))
		if answer.Code != http.StatusBadRequest {
			t.Errorf("%q is answered with %d", body, answer.Code)
		}
	}
}
