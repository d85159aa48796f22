package apitest_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFieldValidation(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	const (
		unknown   = `unknown field "spec.colour"`
		nested    = `unknown field "spec.parts[0].weight"`
		duplicate = `duplicate field "spec.replicas"`
	)
	body := func(name string) string {
		return fmt.Sprintf(
			`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q},`+
				`"spec":{"replicas":1,"replicas":2,"colour":"red","parts":[{"name":"a","weight":3}]}}`,
			name,
		)
	}
	yamlBody := "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: %s}\nspec:\n  replicas: 1\n  replicas: 2\n  colour: " +
		"red\n  parts:\n  - {name: a, weight: 3}\n"
	for name, test := range map[string]struct {
		name     string
		query    string
		accepted bool
		warnings []string
	}{
		"by default":  {"default", "", true, []string{unknown, nested, duplicate}},
		"when warned": {"warned", "?fieldValidation=Warn", true, []string{unknown, nested, duplicate}},
		"ignored":     {"ignored", "?fieldValidation=Ignore", true, nil},
		"strict":      {"strict", "?fieldValidation=Strict", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := &client{t, c.config, c.http}
			name := test.name
			a := c.post(widgetsPath+test.query, body(name))
			got := a.warnings()
			slices.Sort(got)
			want := slices.Sorted(slices.Values(test.warnings))
			if !slices.Equal(got, want) {
				t.Errorf("warnings %q, want %q", got, want)
			}
			if !test.accepted {
				a.refused(
					400,
					metav1.StatusReasonBadRequest,
					`Widget in version "v1" cannot be handled as a Widget: strict decoding error: `,
					unknown,
					nested,
					duplicate,
				)
				c.get(widgetsPath + "/" + name).want(404)
				return
			}
			if w := a.want(201).widget(); *w.Spec.Replicas != 2 || w.Spec.Parts[0].Name != "a" {
				t.Errorf("accepted: %+v", w.Spec)
			}
			y := c.post(widgetsPath+test.query, fmt.Sprintf(yamlBody, name+"y"), "Content-Type", yamlType).want(201)
			if got := y.warnings(); (len(got) == 0) != (len(test.warnings) == 0) {
				t.Errorf("YAML: warnings %q", got)
			}
		})
	}
	c.post(widgetsPath+"?fieldValidation=Strict", fmt.Sprintf(yamlBody, "yaml"), "Content-Type", yamlType).
		refused(400, metav1.StatusReasonBadRequest, "strict decoding error", `"replicas" already set in map`, unknown)
	c.post(widgetsPath+"?fieldValidation=Sometimes", widget("w")).
		refused(422, metav1.StatusReasonInvalid, `fieldValidation: Unsupported value: "Sometimes"`)

	c.create("w")
	path := widgetsPath + "/w"
	for _, mediaType := range []string{mergePatch, strategicType} {
		a := c.patch(mediaType, path, `{"spec":{"colour":"red","replicas":3}}`).want(200)
		if got := a.warnings(); !slices.Equal(got, []string{unknown}) {
			t.Errorf("%s: warnings %q", mediaType, got)
		}
		c.patch(mediaType, path+"?fieldValidation=Strict", `{"spec":{"colour":"red"}}`).refused(422, metav1.StatusReasonInvalid, unknown)
	}
	c.patch(jsonPatch, path+"?fieldValidation=Strict", `[{"op":"add","path":"/spec/colour","value":"red"}]`).
		refused(422, metav1.StatusReasonInvalid, unknown)
	c.patch(jsonPatch, path+"?fieldValidation=Strict", `[{"op":"add","op":"add","path":"/spec/replicas","value":4}]`).
		refused(422, metav1.StatusReasonInvalid, "duplicate field", "op")
	w := c.widget("w")
	c.put(path+"?fieldValidation=Strict", widget("w", metadata(fields{"resourceVersion": w.ResourceVersion}), spec(fields{"colour": "red"}))).
		refused(400, metav1.StatusReasonBadRequest, unknown)
	c.put(path+"?fieldValidation=Strict", widget("w", metadata(fields{"resourceVersion": w.ResourceVersion, "colour": "red"}))).
		refused(400, metav1.StatusReasonBadRequest, `unknown field "metadata.colour"`)
	c.patch(mergePatch, path+"/status?fieldValidation=Strict", `{"status":{"colour":"red"}}`).
		refused(422, metav1.StatusReasonInvalid, `unknown field "status.colour"`)
	c.patch(mergePatch, path+"/scale?fieldValidation=Strict", `{"spec":{"colour":"red"}}`).refused(422, metav1.StatusReasonInvalid, unknown)
	c.post(widgetsBetaPath+"?fieldValidation=Strict", widgetBeta("new", spec(fields{"colour": "red"}))).
		refused(400, metav1.StatusReasonBadRequest, unknown)
	// Names of fields are case-sensitive: another case is another field.
	c.post(widgetsPath+"?fieldValidation=Strict", widget("new", spec(fields{"Replicas": 1}))).
		refused(400, metav1.StatusReasonBadRequest, `unknown field "spec.Replicas"`)
	if c.widget("w").ResourceVersion != w.ResourceVersion {
		t.Error("a refused write left something behind")
	}
}
