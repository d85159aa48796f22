package apitest_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// aliases is YAML that is a gigabyte when its aliases are replaced.
const aliases = 5000

func aliased(head string) string {
	return head + "\nx: &x " + strings.Repeat("x", 200_000) + "\ny:\n" + strings.Repeat("- *x\n", aliases)
}

func TestYAMLThatExpandsBeyondABodyIsRefusedUnread(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	path := widgetsPath + "/w"
	const head = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w}"
	for name, test := range map[string]struct{ method, path, mediaType, body string }{
		"create":                   {"POST", widgetsPath, yamlType, aliased(head)},
		"create, with parameters":  {"POST", widgetsPath, "Application/YAML; charset=utf-8", aliased(head)},
		"update":                   {"PUT", path, yamlType, aliased(head)},
		"update of the status":     {"PUT", path + "/status", yamlType, aliased(head)},
		"update of the scale":      {"PUT", path + "/scale", yamlType, aliased("apiVersion: autoscaling/v1\nkind: Scale")},
		"apply":                    {"PATCH", path + "?fieldManager=m", applyPatch, aliased(head)},
		"apply, with parameters":   {"PATCH", path + "?fieldManager=m", applyPatch + "; x", aliased(head)},
		"delete":                   {"DELETE", path, yamlType, aliased("apiVersion: v1\nkind: DeleteOptions")},
		"delete of a collection":   {"DELETE", widgetsPath, yamlType, aliased("apiVersion: v1\nkind: DeleteOptions")},
		"a kind that is not here":  {"POST", widgetsPath, yamlType, aliased("apiVersion: v1\nkind: Pod")},
		"a namespace":              {"POST", "/api/v1/namespaces", yamlType, aliased("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}")},
		"no object at all":         {"POST", widgetsPath, yamlType, aliased("a: b")},
		"merge keys":               {"POST", widgetsPath, yamlType, "x: &x {k: " + strings.Repeat("x", 200_000) + "}\ny:\n" + strings.Repeat("- <<: *x\n", aliases)},
		"lists of lists of others": {"POST", widgetsPath, yamlType, bomb()},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, c.config, c.http}).do(test.method, test.path, test.body, "Content-Type", test.mediaType).
				refused(413, metav1.StatusReasonRequestEntityTooLarge, "the YAML is larger than 3145728 bytes once its aliases are replaced by what they stand for")
		})
	}
	if after := c.widget("w"); after.ResourceVersion != w.ResourceVersion {
		t.Errorf("something was changed: %+v", after)
	}
}

func TestYAMLWithAliasesIsRead(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	const text = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w, labels: &l {a: b}}\nspec: {options: {<<: *l, c: d}}\n"
	if w := c.post(widgetsPath, text, "Content-Type", yamlType).want(201).widget(); w.Spec.Options["a"] != "b" || w.Spec.Options["c"] != "d" {
		t.Errorf("created: %+v", w.Spec)
	}
	if w := c.apply(widgetsPath+"/v", "m", strings.Replace(text, "name: w", "name: v", 1)).want(201).widget(); w.Spec.Options["a"] != "b" {
		t.Errorf("applied: %+v", w.Spec)
	}
	c.post(widgetsPath, "a: &a [*a]", "Content-Type", yamlType).refused(400, metav1.StatusReasonBadRequest, "contains itself")
	c.post(widgetsPath, "a: &a [\n\t- *a", "Content-Type", yamlType).refused(400, metav1.StatusReasonBadRequest, "yaml")
}
