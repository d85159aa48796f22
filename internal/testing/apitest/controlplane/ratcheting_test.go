package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// An object that a new rule makes invalid can be changed, but its invalid fields can only be changed to valid
// values.
func TestRatcheting(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, refusal string
		rule          func(spec *schemaOf)
		passes        []string
		refused       []string
		mends         string
	}{
		{
			"a rule of a field", `spec.size: Invalid value: 7: too large`, func(spec *schemaOf) {
				size := spec.Properties["size"]
				size.XValidations = apiextensionsv1.ValidationRules{{Rule: "self < 5", Message: "too large"}}
				spec.Properties["size"] = size
			},
			[]string{`{"metadata":{"labels":{"tier":"front"}}}`, `{"spec":{"color":"blue"}}`, `{"spec":{"size":9}}`},
			[]string{`{"spec":{"size":7}}`}, `{"spec":{"size":3}}`,
		},
		{
			"a bound of a field", `spec.size: Invalid value: 7: spec.size in body should be less than or equal to 5`, func(spec *schemaOf) {
				size := spec.Properties["size"]
				size.Maximum = new(5.0)
				spec.Properties["size"] = size
			},
			[]string{`{"metadata":{"labels":{"tier":"front"}}}`, `{"spec":{"color":"blue"}}`, `{"spec":{"size":9}}`},
			[]string{`{"spec":{"size":7}}`}, `{"spec":{"size":3}}`,
		},
		{
			"a rule of all fields", `too large`, func(spec *schemaOf) {
				spec.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.size < 5", Message: "too large"}}
			},
			[]string{`{"metadata":{"labels":{"tier":"front"}}}`, `{"spec":{"size":9}}`},
			[]string{`{"spec":{"size":7}}`, `{"spec":{"color":"blue"}}`}, `{"spec":{"size":3}}`,
		},
		{
			"a rule that looks at what was", `only up`, func(spec *schemaOf) {
				size := spec.Properties["size"]
				size.XValidations = apiextensionsv1.ValidationRules{{Rule: "self >= oldSelf", Message: "only up"}}
				spec.Properties["size"] = size
			},
			[]string{`{"spec":{"color":"blue"}}`}, []string{`{"spec":{"size":7}}`}, `{"spec":{"size":10}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := clientsOf(annextest.Start(t, cluster()))
			c.define(t, widgets(map[string]schemaOf{"size": {Type: "integer"}, "color": {Type: "string"}}))
			if _, err := c.widgets.Create(
				t.Context(),
				widget("old", map[string]any{"size": int64(9), "color": "red"}),
				metav1.CreateOptions{},
			); err != nil {
				t.Fatal(err)
			}
			patch := func(body string, dryRun ...string) error {
				_, err := c.widgets.Patch(t.Context(), "old", types.MergePatchType, []byte(body), metav1.PatchOptions{DryRun: dryRun})
				return err
			}
			definitions := c.definitions.ApiextensionsV1().CustomResourceDefinitions()
			testwait.NoError(t, "the rule is added", func(ctx context.Context) error {
				d, err := definitions.Get(ctx, "widgets.stable.example.com", metav1.GetOptions{})
				if err != nil {
					return err
				}
				spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
				test.rule(&spec)
				d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
				_, err = definitions.Update(ctx, d, metav1.UpdateOptions{})
				return err
			})
			testwait.NoError(t, "the rule is in force", func(context.Context) error {
				if err := patch(test.refused[0], metav1.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.refusal) {
					return fmt.Errorf("%s: %w", test.refused[0], err)
				}
				return nil
			})
			for _, body := range test.passes {
				if err := patch(body); err != nil {
					t.Errorf("%s: %v", body, err)
				}
			}
			for _, body := range test.refused {
				if err := patch(body); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.refusal) {
					t.Errorf("%s: %v, not %s", body, err, test.refusal)
				}
			}
			if err := patch(test.mends); err != nil {
				t.Errorf("%s: %v", test.mends, err)
			}
			if err := patch(test.refused[0]); !apierrors.IsInvalid(err) {
				t.Errorf("%s, when the object is valid: %v", test.refused[0], err)
			}
		})
	}
}
