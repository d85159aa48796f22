package fairness

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// The expected errors are those of a kube-apiserver: go -C e2e/cluster test ./fairness compares the file with one.
func TestValidate_likeKubeAPIServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/invalid.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name, Kind  string
		Object, Old json.RawMessage
		Errors      []string
	}
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	valid := 0
	for _, test := range all {
		t.Run(test.Name, func(t *testing.T) {
			kinds := Group().Kinds
			kind := kinds[slices.Index([]string{"FlowSchema", "PriorityLevelConfiguration"}, test.Kind)]
			o := kind.Versions[0].New()
			if err := yaml.UnmarshalStrict(test.Object, o); err != nil {
				t.Fatal(err)
			}
			kind.Versions[0].Default(o)
			m := o.(metav1.Object)
			m.SetNamespace("") // as the server does
			if m.GetGenerateName() != "" {
				m.SetName(m.GetGenerateName() + "x")
			}
			errs := append(metadataMistakes(o), kind.Validate(t.Context(), o)...)
			var got []string
			for _, cause := range apierrors.NewInvalid(schema.GroupKind{}, "", errs).Status().Details.Causes {
				got = append(got, fmt.Sprintf("%s: %s: %s", cause.Type, cause.Field, cause.Message))
			}
			slices.Sort(got)
			if !slices.Equal(got, test.Errors) {
				t.Errorf("got  %q\nwant %q", got, test.Errors)
			}
			if len(got) == 0 {
				valid++
			}
		})
	}
	if len(all) < 100 || valid < 30 {
		t.Errorf("%d objects, %d of them valid", len(all), valid)
	}
}

// metadataMistakes returns the errors that all kinds report.
func metadataMistakes(obj runtime.Object) field.ErrorList {
	switch o := obj.(type) {
	case *flowcontrolv1.FlowSchema:
		return validation.ValidateObjectMeta(o.ObjectMeta.DeepCopy(), false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	case *flowcontrolv1.PriorityLevelConfiguration:
		return validation.ValidateObjectMeta(o.ObjectMeta.DeepCopy(), false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	}
	return nil
}

func TestSetDefaults_likeKubeAPIServer(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`{"priorityLevelConfiguration":{"name":"a"}}`: `{"priorityLevelConfiguration":{"name":"a"},` +
			`"matchingPrecedence":1000}`,
		`{"priorityLevelConfiguration":{"name":"a"},"matchingPrecedence":-10}`: `{"priorityLevelConfiguration":{"name":"a"},` +
			`"matchingPrecedence":-10}`,
	} {
		s := &flowcontrolv1.FlowSchema{}
		if err := json.Unmarshal([]byte(given), &s.Spec); err != nil {
			t.Fatal(err)
		}
		setFlowSchemaDefaults(s)
		if got, err := json.Marshal(s.Spec); err != nil || string(got) != want {
			t.Errorf("%s becomes %s, %v, want %s", given, got, err, want)
		}
	}
	for given, want := range map[string]string{
		`{"type":"Exempt"}`:             `{"type":"Exempt"}`,
		`{"type":"Exempt","exempt":{}}`: `{"type":"Exempt","exempt":{"nominalConcurrencyShares":0,"lendablePercent":0}}`,
		`{"type":"Limited","limited":{"lendablePercent":7}}`: `{"type":"Limited","limited":{"nominalConcurrencyShares":30,` +
			`"limitResponse":{"type":""},"lendablePercent":7}}`,
		`{"limited":{"limitResponse":{"queuing":{}}}}`: `{"type":"","limited":{"nominalConcurrencyShares":30,` +
			`"limitResponse":{"type":"","queuing":{"queues":64,"handSize":8,"queueLengthLimit":50}},"lendablePercent":0}}`,
		`{"limited":{"nominalConcurrencyShares":0,"lendablePercent":0,"limitResponse":{"queuing":{"queues":1,` +
			`"handSize":1,"queueLengthLimit":1}}}}`: `{"type":"","limited":{"nominalConcurrencyShares":0,` +
			`"limitResponse":{"type":"","queuing":{"queues":1,"handSize":1,"queueLengthLimit":1}},"lendablePercent":0}}`,
	} {
		l := &flowcontrolv1.PriorityLevelConfiguration{}
		if err := json.Unmarshal([]byte(given), &l.Spec); err != nil {
			t.Fatal(err)
		}
		setPriorityLevelDefaults(l)
		if got, err := json.Marshal(l.Spec); err != nil || string(got) != want {
			t.Errorf("%s becomes %s, %v, want %s", given, got, err, want)
		}
	}
}
