package apitest_test

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/memory"
)

// query builds a query from alternating names and values.
func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return "?" + values.Encode()
}

func TestList_isSortedAndComplete(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	empty := c.get(widgetsPath).want(200)
	if !strings.Contains(string(empty.raw), `"items":[]`) || empty.str("kind") != "WidgetList" ||
		empty.str("apiVersion") != "shop.example.com/v1" ||
		empty.str("metadata", "resourceVersion") == "0" {
		t.Errorf("empty list: %s", empty.raw)
	}
	for _, name := range []string{"b", "a", "c"} {
		c.create(name)
	}
	c.namespace("other")
	c.post("/apis/shop.example.com/v1/namespaces/other/widgets", widget("d")).want(201)
	list := c.get(widgetsPath).want(200)
	if got := list.names(); fmt.Sprint(got) != "[a b c]" {
		t.Errorf("got %v", got)
	}
	for _, item := range append(list.items(), c.get(widgetsBetaPath).want(200).items()...) {
		if item["kind"] != nil || item["apiVersion"] != nil {
			t.Errorf("an item of a typed list repeats its type: %v", item)
		}
	}
	if got := c.get("/apis/shop.example.com/v1/widgets").want(200).names(); fmt.Sprint(got) != "[a b c d]" {
		t.Errorf("all namespaces: %v", got)
	}
	if got := c.get("/apis/shop.example.com/v1/namespaces/nowhere/widgets").want(200).names(); len(got) != 0 {
		t.Errorf("a namespace that is not there: %v", got)
	}
}

func TestSelectors(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for name, labels := range map[string]fields{
		"a": {"env": "prod", "tier": "1"},
		"b": {"env": "dev", "tier": "2"},
		"c": {"env": "test"},
		"d": {"tier": "3"},
		"e": nil,
	} {
		size := "small"
		if name > "b" {
			size = "large"
		}
		c.create(name, metadata(fields{"labels": labels}), spec(fields{"size": size}))
	}
	for selector, want := range map[string]string{
		"env":                      "[a b c]",
		"!env":                     "[d e]",
		"env=prod":                 "[a]",
		"env==prod":                "[a]",
		"env!=prod":                "[b c d e]",
		"env in (prod,dev)":        "[a b]",
		"env notin (prod,dev)":     "[c d e]",
		"tier>1":                   "[b d]",
		"tier<3,env":               "[a b]",
		"env,tier!=1":              "[b c]",
		"env in (),env in (prod),": "",
	} {
		a := c.get(widgetsPath + query("labelSelector", selector))
		if want == "" {
			a.refused(400, metav1.StatusReasonBadRequest)
			continue
		}
		if got := a.want(200).names(); fmt.Sprint(got) != want {
			t.Errorf("label selector %q: got %v, want %s", selector, got, want)
		}
	}
	for selector, want := range map[string]string{
		"metadata.name=a":                        "[a]",
		"metadata.name!=a":                       "[b c d e]",
		"metadata.name=a,metadata.name=b":        "[]",
		"metadata.namespace=default":             "[a b c d e]",
		"metadata.namespace=other":               "[]",
		"spec.size=large":                        "[c d e]",
		"spec.size!=large,metadata.name!=b":      "[a]",
		"spec.size==small,metadata.namespace!=x": "[a b]",
	} {
		for _, path := range []string{widgetsPath, widgetsBetaPath} {
			if got := c.get(path + query("fieldSelector", selector)).want(200).names(); fmt.Sprint(got) != want {
				t.Errorf("%s: field selector %q: got %v, want %s", path, selector, got, want)
			}
		}
	}
	if got := c.get(widgetsPath + query("fieldSelector", "spec.size=large", "labelSelector", "!env")).
		want(200).
		names(); fmt.Sprint(
		got,
	) != "[d e]" {
		t.Errorf("both selectors: %v", got)
	}
	for _, path := range []string{widgetsPath, widgetsBetaPath} {
		c.get(path+query("fieldSelector", "spec.replicas=1")).
			refused(400, metav1.StatusReasonBadRequest, "field label not supported: spec.replicas")
		c.get(path+query("watch", "1", "fieldSelector", "spec.replicas=1")).
			refused(400, metav1.StatusReasonBadRequest, "field label not supported: spec.replicas")
	}
	c.get(widgetsPath+query("fieldSelector", "nonsense")).refused(400, metav1.StatusReasonBadRequest, "invalid selector")
	c.get(widgetsPath+query("labelSelector", "a b")).refused(400, metav1.StatusReasonBadRequest, "unable to parse requirement")
	c.get(widgetsPath + "/a" + query("fieldSelector", "metadata.name=a")).want(200)
}

func TestList_pages(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for i := range 7 {
		c.create(fmt.Sprintf("w%d", i), metadata(fields{"labels": fields{"odd": fmt.Sprint(i % 2)}}))
	}
	page := c.get(widgetsPath + "?limit=3").want(200)
	if got := page.names(); fmt.Sprint(got) != "[w0 w1 w2]" || page.str("metadata", "remainingItemCount") != "4" {
		t.Errorf("first page: %s", page.raw)
	}
	rv := page.str("metadata", "resourceVersion")

	// Writes in between do not show: all pages are of one revision.
	c.create("w1a")
	c.create("w5a")
	c.delete(widgetsPath+"/w4", nil).want(200)
	second := c.get(widgetsPath + query("limit", "3", "continue", page.str("metadata", "continue"))).want(200)
	if got := second.names(); fmt.Sprint(got) != "[w3 w4 w5]" || second.str("metadata", "remainingItemCount") != "1" ||
		second.str("metadata", "resourceVersion") != rv {
		t.Errorf("second page: %s", second.raw)
	}
	last := c.get(widgetsPath + query("limit", "3", "continue", second.str("metadata", "continue"))).want(200)
	if got := last.names(); fmt.Sprint(got) != "[w6]" || last.str("metadata", "remainingItemCount") != "" ||
		last.str("metadata", "continue") != "" ||
		last.str("metadata", "resourceVersion") != rv {
		t.Errorf("last page: %s", last.raw)
	}

	// A list at any version is one page, as in kube-apiserver's cache.
	if any := c.get(widgetsPath + query("limit", "3", "resourceVersion", "0")).
		want(200); len(any.names()) != 8 ||
		any.str("metadata", "continue") != "" {
		t.Errorf("a list of any version: %s", any.raw)
	}

	// With a selector, the number of remaining items is unknown.
	selected := c.get(widgetsPath + query("limit", "2", "labelSelector", "odd=1")).want(200)
	if got := selected.names(); fmt.Sprint(got) != "[w1 w3]" || selected.str("metadata", "remainingItemCount") != "" ||
		selected.str("metadata", "continue") == "" {
		t.Errorf("selected page: %s", selected.raw)
	}
	rest := c.get(widgetsPath + query("limit", "2", "labelSelector", "odd=1", "continue", selected.str("metadata", "continue"))).want(200)
	if got := rest.names(); fmt.Sprint(got) != "[w5]" || rest.str("metadata", "continue") != "" {
		t.Errorf("last selected page: %s", rest.raw)
	}

	c.get(widgetsPath+query("continue", "nonsense", "limit", "1")).refused(400, metav1.StatusReasonBadRequest, "continue key is not valid")
	c.get(widgetsPath+query("continue", page.str("metadata", "continue"), "resourceVersion", rv)).
		refused(400, metav1.StatusReasonBadRequest, "specifying resource version is not allowed when using continue")
	c.get(widgetsPath+"?limit=nonsense").refused(400, metav1.StatusReasonBadRequest)
	if got := c.get(widgetsPath + "?limit=-1").want(200).names(); len(got) != 8 {
		t.Errorf("a negative limit: %v", got)
	}
}

func TestList_continueAfterCompaction(t *testing.T) {
	t.Parallel()
	notOn(t, notCompacted, etcd.Name)
	// A history of two revisions.
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), HistoryAge: -1, HistoryRevisions: 2})
	for i := range 5 {
		c.create(fmt.Sprintf("w%d", i))
	}
	page := c.get(widgetsPath + "?limit=2").want(200)
	rv := page.str("metadata", "resourceVersion")
	token := page.str("metadata", "continue")
	var gone *answer
	for i := 0; ; i++ {
		c.patch(mergePatch, widgetsPath+"/w4", fmt.Sprintf(`{"spec":{"replicas":%d}}`, i%100)).want(200)
		if gone = c.get(widgetsPath + query("limit", "2", "continue", token)); gone.code != 200 {
			break
		}
		if i == 10000 {
			t.Fatal("nothing was compacted")
		}
	}
	s := gone.refused(410, metav1.StatusReasonExpired, "The provided continue parameter is too old to display a consistent list result.")
	if s.ListMeta.Continue == "" {
		t.Fatalf("no token to go on with: %s", gone.raw)
	}
	rest := c.get(widgetsPath + query("limit", "2", "continue", s.ListMeta.Continue)).want(200)
	if got := rest.names(); fmt.Sprint(got) != "[w2 w3]" || rest.str("metadata", "resourceVersion") == rv {
		t.Errorf("an inconsistent continue: %s", rest.raw)
	}
	c.get(widgetsPath+query("resourceVersion", rv, "resourceVersionMatch", "Exact")).
		refused(410, metav1.StatusReasonExpired, "The resourceVersion for the provided list is too old.")
	if got := c.get(widgetsPath + query("resourceVersion", rv)).want(200).names(); len(got) != 5 {
		t.Errorf("not older than a compacted revision: %v", got)
	}
	w := c.watch(widgetsPath + query("watch", "1", "resourceVersion", rv))
	e := w.next()
	if e.Type != "ERROR" || text(e.Object, "code") != "410" || text(e.Object, "reason") != "Expired" || text(e.Object, "kind") != "Status" {
		t.Errorf("a watch from a compacted revision: %v", e)
	}
	w.ends()
}

func TestList_resourceVersions(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	first := c.create("a").ResourceVersion
	c.create("b")
	c.delete(widgetsPath+"/a", nil).want(200)
	now := c.get(widgetsPath).str("metadata", "resourceVersion")
	future, current := now+"0", now
	if shared() {
		current = "" // others have written since
	}
	for _, test := range []struct {
		rv, match, limit string
		want             string // names, or the code and part of the message
	}{
		{"", "", "", "[b]"},
		{"0", "", "", "[b]"},
		{first, "", "", "[b]"},
		{first, "NotOlderThan", "", "[b]"},
		{first, "Exact", "", "[a]"},
		{first, "", "1", "[a]"}, // the behaviour before the parameter resourceVersionMatch
		{first, "NotOlderThan", "1", "[b]"},
		{now, "Exact", "", "[b]"},
		{"0", "NotOlderThan", "", "[b]"},
		{"0", "Exact", "", "422 resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""},
		{"", "Exact", "", "422 resourceVersionMatch is forbidden unless resourceVersion is provided"},
		{first, "Never", "", "422 resourceVersionMatch: Unsupported value: \"Never\""},
		{future, "", "", "504 Too large resource version: " + future + ", current: " + current},
		{future, "Exact", "", "504 Too large resource version"},
		{"nonsense", "", "", "400 resourceVersion"},
	} {
		a := c.get(widgetsPath + query("resourceVersion", test.rv, "resourceVersionMatch", test.match, "limit", cmp.Or(test.limit, "0")))
		if strings.HasPrefix(test.want, "[") {
			if got := a.want(200).names(); fmt.Sprint(got) != test.want {
				t.Errorf("resourceVersion %q, match %q, limit %q: got %v, want %s", test.rv, test.match, test.limit, got, test.want)
			}
			continue
		}
		code, part, _ := strings.Cut(test.want, " ")
		if fmt.Sprint(a.code) != code || !strings.Contains(a.status().Message, part) {
			t.Errorf("resourceVersion %q, match %q, limit %q: got %d %s, want %s", test.rv, test.match, test.limit, a.code, a.raw, test.want)
		}
	}
	// Of one object.
	c.get(widgetsPath + "/b?resourceVersion=0").want(200)
	c.get(widgetsPath + "/b?resourceVersion=" + first).want(200)
	s := c.get(widgetsPath+"/b?resourceVersion="+future).refused(504, metav1.StatusReasonTimeout, "Too large resource version")
	if s.Details == nil || len(s.Details.Causes) != 1 || s.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge {
		t.Errorf("a future revision: %+v", s.Details)
	}
}
