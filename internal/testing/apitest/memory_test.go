package apitest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// aliases is the number of aliases in a YAML document that expands to a gigabyte.
const aliases = 5000

func aliased(head string) string {
	return head + "\nx: &x " + strings.Repeat("x", 200_000) + "\ny:\n" + strings.Repeat("- *x\n", aliases)
}

func TestYAML_expandingAliases_areRejected(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	path := widgetsPath + "/w"
	const head = "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w}"
	for name, test := range map[string]struct{ method, path, mediaType, body string }{
		"create":                  {"POST", widgetsPath, yamlType, aliased(head)},
		"create, with parameters": {"POST", widgetsPath, "Application/YAML; charset=utf-8", aliased(head)},
		"update":                  {"PUT", path, yamlType, aliased(head)},
		"update of the status":    {"PUT", path + "/status", yamlType, aliased(head)},
		"update of the scale":     {"PUT", path + "/scale", yamlType, aliased("apiVersion: autoscaling/v1\nkind: Scale")},
		"apply":                   {"PATCH", path + "?fieldManager=m", applyPatch, aliased(head)},
		"apply, with parameters":  {"PATCH", path + "?fieldManager=m", applyPatch + "; x", aliased(head)},
		"delete":                  {"DELETE", path, yamlType, aliased("apiVersion: v1\nkind: DeleteOptions")},
		"delete of a collection":  {"DELETE", widgetsPath, yamlType, aliased("apiVersion: v1\nkind: DeleteOptions")},
		"a kind that is not here": {"POST", widgetsPath, yamlType, aliased("apiVersion: v1\nkind: Pod")},
		"a namespace":             {"POST", "/api/v1/namespaces", yamlType, aliased("apiVersion: v1\nkind: Namespace\nmetadata: {name: n}")},
		"no object at all":        {"POST", widgetsPath, yamlType, aliased("a: b")},
		"merge keys": {"POST", widgetsPath, yamlType, "x: &x {k: " + strings.Repeat("x", 200_000) + "}\ny:\n" +
			strings.Repeat("- <<: *x\n", aliases)},
		"lists of lists of others": {"POST", widgetsPath, yamlType, bomb()},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, c.config, c.http}).do(test.method, test.path, test.body, "Content-Type", test.mediaType).
				refused(413, metav1.StatusReasonRequestEntityTooLarge, "the YAML is larger than 3145728 bytes after the expansion of "+
					"its aliases")
		})
	}
	if after := c.widget("w"); after.ResourceVersion != w.ResourceVersion {
		t.Errorf("something was changed: %+v", after)
	}
}

func TestYAML_aliases(t *testing.T) {
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

// Lists that do not fit into the budget together are answered one after the other, whole.
func TestMemoryBudget_largerLists_areAnswered(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), MemoryBudget: 1})
	for i := range 12 << 20 / largest() {
		c.create(fmt.Sprintf("w%02d", i), spec(fields{"options": fields{"fill": strings.Repeat("x", largest())}}))
	}
	forms := []struct{ query, accept string }{
		{"", jsonType},
		{"?pretty=true", jsonType},
		{"?includeObject=Object", "application/json;as=Table;v=v1;g=meta.k8s.io"},
		{"", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
		{"?labelSelector=" + "!none", jsonType},
		{"?limit=5", jsonType},
	}
	var lists sync.WaitGroup
	for _, form := range forms {
		lists.Go(func() {
			got := c.get(widgetsPath+form.query, "Accept", form.accept)
			if got.code != 200 || !strings.Contains(string(got.raw), "w04") {
				t.Errorf("%s as %s: %d, %d bytes", form.query, form.accept, got.code, len(got.raw))
			}
		})
	}
	lists.Wait()
	metrics := string(c.get("/metrics").want(200).raw)
	for _, line := range []string{"annex_memory_budget_bytes 6.7108864e+07", "annex_memory_budget_used_bytes 0",
		"annex_memory_budget_waiting_requests 0", "annex_memory_budget_refused_requests_total 0"} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("/metrics does not say %s", line)
		}
	}
}

func TestMemoryBudget_disabled(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), MemoryBudget: -1})
	c.create("w")
	if got := c.get(widgetsPath).names(); len(got) != 1 {
		t.Errorf("listed: %v", got)
	}
	if strings.Contains(string(c.get("/metrics").want(200).raw), "annex_memory_budget") {
		t.Error("/metrics knows a budget")
	}
}
