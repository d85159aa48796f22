package apitest_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	tableType   = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partialType = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partialList = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

func table(a *answer) metav1.Table {
	a.t.Helper()
	var table metav1.Table
	decode(a.t, a.want(200).raw, &table)
	if table.Kind != "Table" || table.APIVersion != "meta.k8s.io/v1" {
		a.t.Fatalf("%s: no Table: %s", a.asked, a.raw)
	}
	return table
}

func headings(t metav1.Table) string {
	var all []string
	for _, c := range t.ColumnDefinitions {
		all = append(all, fmt.Sprintf("%s:%s:%s:%d", c.Name, c.Type, c.Format, c.Priority))
	}
	return strings.Join(all, " ")
}

func TestTables(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a", spec(fields{"replicas": 3, "size": "large"}))
	c.create("b")
	const columns = "Name:string:name:0 Size:string::0 Replicas:integer::1 Age:date::0"

	list := table(c.get(widgetsPath, "Accept", tableType))
	if got := headings(list); got != columns {
		t.Errorf("columns: %s", got)
	}
	if len(list.Rows) != 2 || fmt.Sprint(list.Rows[0].Cells[:3]) != "[a large 3]" ||
		fmt.Sprint(list.Rows[1].Cells[:3]) != "[b medium <nil>]" ||
		list.ResourceVersion == "" {
		t.Errorf("rows: %v", list.Rows)
	}
	if age := fmt.Sprint(list.Rows[0].Cells[3]); !strings.HasSuffix(age, "s") && !strings.HasSuffix(age, "m") {
		t.Errorf("age: %q", age)
	}
	for _, column := range list.ColumnDefinitions {
		if column.Description == "" {
			t.Errorf("column %s has no description", column.Name)
		}
	}
	var partial metav1.PartialObjectMetadata
	decode(t, list.Rows[0].Object.Raw, &partial)
	if partial.Kind != "PartialObjectMetadata" || partial.APIVersion != "meta.k8s.io/v1" || partial.Name != "a" ||
		strings.Contains(string(list.Rows[0].Object.Raw), `"spec":`) {
		t.Errorf("row object: %s", list.Rows[0].Object.Raw)
	}

	page := table(c.get(widgetsPath+"?limit=1", "Accept", tableType))
	if len(page.Rows) != 1 || page.Continue == "" || page.RemainingItemCount == nil || *page.RemainingItemCount != 1 {
		t.Errorf("a page: %+v", page.ListMeta)
	}
	if one := table(
		c.get(widgetsPath+"/a", "Accept", tableType),
	); len(one.Rows) != 1 || one.Rows[0].Cells[0] != "a" ||
		headings(one) != columns {
		t.Errorf("one object: %+v", one)
	}
	if none := table(c.get(widgetsPath+"?includeObject=None", "Accept", tableType)); len(none.Rows) != 2 || none.Rows[0].Object.Raw != nil {
		t.Errorf("no objects: %s", none.Rows[0].Object.Raw)
	}
	whole := table(c.get(widgetsBetaPath+"?includeObject=Object", "Accept", tableType))
	var obj map[string]any
	decode(t, whole.Rows[0].Object.Raw, &obj)
	if text(obj, "apiVersion")+text(obj, "kind")+text(obj, "spec", "size") != "shop.example.com/v1beta1Widgetlarge" {
		t.Errorf("whole objects: %s", whole.Rows[0].Object.Raw)
	}
	if empty := table(c.get(shelvesPath, "Accept", tableType)); len(empty.Rows) != 0 || headings(empty) != "Name:string:name:0 Age:date::0" {
		t.Errorf("an empty table: %+v", empty)
	}
	c.get(widgetsPath+"?includeObject=Everything", "Accept", tableType).refused(400, metav1.StatusReasonBadRequest, "includeObject")
	// kubectl accepts a table if there is one, else the object.
	if got := c.get(widgetsPath, "Accept", tableType+","+jsonType).str("kind"); got != "Table" {
		t.Errorf("kubectl gets a %s", got)
	}
	c.get(widgetsPath, "Accept", "application/json;as=Table;v=v2;g=meta.k8s.io").refused(406, metav1.StatusReasonNotAcceptable)
	if got := c.get(widgetsPath, "Accept", "application/json;as=Table;v=v2;g=meta.k8s.io,application/json").str("kind"); got != "WidgetList" {
		t.Errorf("a table that is not offered: %s", got)
	}
	// The responses to writes are tables, too.
	if created := table(c.post(widgetsPath, widget("c"), "Accept", tableType).wantCreated()); created.Rows[0].Cells[0] != "c" {
		t.Errorf("created: %+v", created.Rows)
	}
}

func (a *answer) wantCreated() *answer {
	a.t.Helper()
	a.want(http.StatusCreated)
	a.code = http.StatusOK
	return a
}

func TestWatchAsTable(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a", spec(fields{"size": "large"}))
	next := func(w *stream) (string, metav1.Table) {
		t.Helper()
		e := w.next()
		raw, err := json.Marshal(e.Object)
		if err != nil {
			t.Fatal(err)
		}
		var table metav1.Table
		decode(t, raw, &table)
		return e.Type, table
	}
	w := c.watch(widgetsPath+"?watch=1", "Accept", tableType)
	kind, first := next(w)
	if kind != "ADDED" || len(first.ColumnDefinitions) != 4 || fmt.Sprint(first.Rows[0].Cells[:2]) != "[a large]" {
		t.Errorf("first: %s %+v", kind, first)
	}
	c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"small"}}`).want(200)
	kind, second := next(w)
	if kind != "MODIFIED" || len(second.ColumnDefinitions) != 0 || fmt.Sprint(second.Rows[0].Cells[:2]) != "[a small]" {
		t.Errorf("the headings come once: %s %+v", kind, second)
	}
	_, whole := next(c.watch(widgetsPath+"?watch=1&includeObject=Object", "Accept", tableType))
	var obj map[string]any
	decode(t, whole.Rows[0].Object.Raw, &obj)
	if text(obj, "kind")+text(obj, "spec", "size") != "Widgetsmall" {
		t.Errorf("whole objects: %s", whole.Rows[0].Object.Raw)
	}
	bookmarked := c.watch(
		widgetsPath+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		"Accept",
		tableType,
	)
	next(bookmarked)
	kind, end := next(bookmarked)
	var partial metav1.PartialObjectMetadata
	if len(end.Rows) == 1 {
		decode(t, end.Rows[0].Object.Raw, &partial)
	}
	if kind != "BOOKMARK" || partial.Annotations["k8s.io/initial-events-end"] != "true" {
		t.Errorf("the end of the list as a table: %s %+v", kind, end)
	}
}

func TestPartialObjects(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a", metadata(fields{"labels": fields{"x": "y"}}))
	one := c.get(widgetsPath+"/a", "Accept", partialType).want(200)
	if one.str("kind")+one.str("apiVersion") != "PartialObjectMetadatameta.k8s.io/v1" || one.str("metadata", "labels", "x") != "y" ||
		one.object()["spec"] != nil {
		t.Errorf("one: %s", one.raw)
	}
	list := c.get(widgetsPath, "Accept", partialList).want(200)
	if list.str("kind") != "PartialObjectMetadataList" || fmt.Sprint(list.names()) != "[a]" ||
		list.str("metadata", "resourceVersion") == "" ||
		list.items()[0]["spec"] != nil {
		t.Errorf("list: %s", list.raw)
	}
	patched := c.do(http.MethodPatch, widgetsPath+"/a", `{"spec":{"replicas":1}}`, "Content-Type", mergePatch, "Accept", partialType).
		want(200)
	if patched.str("kind") != "PartialObjectMetadata" || patched.str("metadata", "generation") != "2" {
		t.Errorf("patched: %s", patched.raw)
	}
	c.get(widgetsPath, "Accept", partialType).refused(406, metav1.StatusReasonNotAcceptable)
	// Metadata clients prefer protobuf, which metadata have for any kind.
	binary := strings.Replace(partialList, jsonType, protobufType, 1)
	got := c.get(widgetsPath, "Accept", binary+","+partialList+","+jsonType).want(200)
	if got.header.Get("Content-Type") != protobufType || !bytes.HasPrefix(got.raw, []byte("k8s\x00")) {
		t.Errorf("protobuf: %v %q", got.header, got.raw)
	}
}

func TestContentNegotiation(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("a")
	for _, test := range []struct {
		accept, want string // the content type, or nothing for a rejection
	}{
		{"", jsonType},
		{"*/*", jsonType},
		{"application/*", ""},
		{jsonType, jsonType},
		{yamlType, yamlType},
		{"application/json;q=0.1,application/yaml;q=0.9", yamlType},
		{protobufType + "," + jsonType, jsonType},
		{jsonType + "," + protobufType, jsonType},
		{protobufType + ",*/*", jsonType},
		{protobufType, ""},
		{"text/html", ""},
		{"application/cbor", ""},
	} {
		for _, path := range []string{widgetsPath, widgetsPath + "/a", widgetsBetaPath} {
			a := c.get(path, "Accept", test.accept)
			if test.want == "" {
				if a.want(406); !bytes.Contains(a.raw, []byte("Available representations: application/json, application/yaml")) {
					t.Errorf("accept %q: got %q", test.accept, a.raw)
				}
				continue
			}
			if got := a.header.Get("Content-Type"); a.code != 200 || got != test.want {
				t.Errorf("accept %q: got %s, want %s", test.accept, got, test.want)
			}
		}
	}
	c.post(widgetsPath, widget("b"), "Accept", protobufType).want(406)
	c.get(widgetsPath + "/b").want(404)
	c.get(widgetsPath+"?watch=1", "Accept", protobufType).want(406)
	watch := c.watch(widgetsPath+"?watch=1", "Accept", protobufType+","+jsonType)
	watch.want("ADDED a")
	// Clients of protobuf understand errors, too.
	missing := c.get(widgetsPath+"/missing", "Accept", protobufType+","+jsonType)
	missing.want(404)
	if got := c.get(widgetsPath + "?pretty=true").want(200); !bytes.Contains(got.raw, []byte("{\n  \"kind\"")) {
		t.Errorf("pretty: %s", got.raw)
	}
}

func TestYAMLBodies(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	created := c.post(widgetsPath, "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata:\n  name: w\nspec:\n  replicas: 2\n  options: "+
		"{a: \"1\"}\n", "Content-Type", yamlType, "Accept", yamlType).want(201)
	var obj map[string]any
	if err := yaml.Unmarshal(created.raw, &obj); err != nil || text(obj, "spec", "replicas") != "2" {
		t.Errorf("%v: %s", err, created.raw)
	}
	again := strings.Replace(string(created.raw), "replicas: 2", "replicas: 3", 1)
	if w := c.put(widgetsPath+"/w", again, "Content-Type", yamlType).want(200).widget(); *w.Spec.Replicas != 3 {
		t.Errorf("updated: %+v", w.Spec)
	}
	c.post(widgetsPath, "a: [", "Content-Type", yamlType).refused(400, metav1.StatusReasonBadRequest, "yaml")
}

func TestGzip(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for i := range 40 {
		c.create(fmt.Sprintf("w%02d", i), metadata(fields{"annotations": fields{"fill": strings.Repeat("x", 8<<10)}}))
	}
	path := widgetsPath + query("resourceVersionMatch", "Exact", "resourceVersion", c.get(widgetsPath).str("metadata", "resourceVersion"))
	plain := c.get(path, "Accept-Encoding", "identity").want(200)
	packed := c.get(path, "Accept-Encoding", "gzip").want(200)
	if packed.header.Get("Content-Encoding") != "gzip" || !slices.Contains(packed.header.Values("Vary"), "Accept-Encoding") ||
		len(packed.raw) > len(plain.raw)/10 {
		t.Fatalf("%d bytes after %d, headers %v", len(packed.raw), len(plain.raw), packed.header)
	}
	reader, err := gzip.NewReader(bytes.NewReader(packed.raw))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(reader)
	if err != nil || !bytes.Equal(unpacked, plain.raw) {
		t.Errorf("unpacked differs: %v", err)
	}
	if small := c.get(widgetsPath+"/w00", "Accept-Encoding", "gzip").want(200); small.header.Get("Content-Encoding") != "" {
		t.Error("a small answer was packed")
	}
}
