package apitest_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// directly is the number of requests that took a route of the fast path. Lists on the route items count as lists.
func (c *client) answered(route string) int {
	c.t.Helper()
	if slow() {
		c.t.Skip("without the fast path there is nothing to count")
	}
	metrics := string(c.get("/metrics").want(200).raw)
	n := counter(c.t, metrics, fmt.Sprintf("annex_fast_path_answered_total{route=%q}", route))
	if route == "list" {
		n += counter(c.t, metrics, `annex_fast_path_answered_total{route="items"}`)
	}
	return n
}

// counter is the value of a counter in the text format of metrics.
func counter(t *testing.T, metrics, name string) int {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// declined are the requests that upstream's handlers have answered, by verb and reason.
func (c *client) declined() map[string]int {
	c.t.Helper()
	all := map[string]int{}
	pattern := regexp.MustCompile(`(?m)^annex_fast_path_declined_total\{reason="(\w+)",verb="(\w+)"\} (\d+)$`)
	for _, found := range pattern.FindAllStringSubmatch(string(c.get("/metrics").want(200).raw), -1) {
		n, err := strconv.Atoi(found[3])
		if err != nil {
			c.t.Fatal(err)
		}
		all[found[2]+": "+found[1]] = n
	}
	return all
}

// Operators see why requests are slow.
func TestFastPath_declined_isCountedByReason(t *testing.T) {
	t.Parallel()
	if slow() {
		t.Skip("all requests are declined for one reason")
	}
	c := start(t, differentialServer())
	c.create("w")
	before := c.declined()
	w := widgetsPath + "/w"
	for want, ask := range map[string]func() *answer{
		"get: accept":      func() *answer { return c.get(w, "Accept", tableType) },
		"get: options":     func() *answer { return c.get(w + "?resourceVersion=0") },
		"get: error":       func() *answer { return c.get(widgetsPath + "/missing") },
		"get: subresource": func() *answer { return c.get(w + "/status") },
		"get: pretty":      func() *answer { return c.get(w, "User-Agent", "curl/8") },
		"list: error":      func() *answer { return c.get(widgetsPath + "?fieldSelector=nothing=1") },
		"create: body":     func() *answer { return c.do(http.MethodPost, widgetsPath, "{", "Content-Type", jsonType) },
		"create: options": func() *answer {
			return c.do(http.MethodPost, widgetsPath+"?dryRun=All", "{}", "Content-Type", jsonType)
		},
		"patch: content_type": func() *answer { return c.do(http.MethodPatch, w, "{}", "Content-Type", strategicType) },
		"other: verb":         func() *answer { return c.do(http.MethodHead, w, nil) },
	} {
		ask()
		after := c.declined()
		for name, n := range after {
			if more := n - before[name]; name == want && more != 1 || name != want && more != 0 {
				t.Errorf("%d requests were declined for %q, want one for %q", more, name, want)
			}
		}
		if after[want] == 0 {
			t.Errorf("nothing was declined for %q", want)
		}
		before = after
	}
}

// A server without the fast path answers as others do, and counts no request as fast.
func TestFastPath_disabled_declinesAll(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), DisableFastPath: true})
	c.create("w")
	c.get(widgetsPath + "/w").want(200)
	c.get(widgetsPath).want(200)
	c.delete(widgetsPath+"/w", nil).want(200)
	declined := c.declined()
	for _, verb := range []string{"create", "delete", "get", "list"} {
		if declined[verb+": turned_off"] == 0 {
			t.Errorf("no request to %s was declined because the fast path is off: %v", verb, declined)
		}
	}
	metrics := string(c.get("/metrics").want(200).raw)
	for _, route := range []string{"create", "delete", "get", "items", "list", "patch", "update", "watch"} {
		if n := counter(t, metrics, fmt.Sprintf("annex_fast_path_answered_total{route=%q}", route)); n != 0 {
			t.Errorf("%d requests to %s took the fast path", n, route)
		}
	}
}

// Requests that need none of upstream's handlers are answered directly, as the metric shows. Responses are the same
// either way, so nothing else would reveal that all requests had become slow.
func TestFastPath_plainRequests(t *testing.T) {
	t.Parallel()
	c := start(t, differentialServer())
	const body = `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":"small"}}`
	type request struct {
		name, verb string // empty if upstream answers
		method     string
		path       string
		body       string
		headers    []string
		code       int
	}
	get, post, put, patch, del := http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	as := func(accept string) []string { return []string{"Accept", accept} }
	with := func(media string) []string { return []string{"Content-Type", media} }
	w := widgetsPath + "/w"
	c.createLease("l")
	for _, r := range []request{
		{"create", "create", post, widgetsPath, body, nil, 201},
		{"create what is there", "create", post, widgetsPath, body, nil, 409},
		{"create what is not valid", "create", post, widgetsPath, strings.Replace(body, "small", "huge", 1), nil, 422},
		{"create with options", "create", post, shelvesPath + "?fieldManager=me&fieldValidation=Strict",
			`{"apiVersion":"shop.example.com/v1","kind":"Shelf","metadata":{"name":"s"}}`, nil, 201},
		{"create in another version", "create", post, widgetsBetaPath,
			strings.NewReplacer(`com/v1"`, `com/v1beta1"`, `"w"`, `"beta"`).Replace(body), nil, 201},
		{"create with a mistake in the body", "", post, widgetsPath, body[1:], nil, 400},
		{"create with an unknown field", "", post, widgetsPath, strings.Replace(strings.Replace(body, `"w"`, `"v"`, 1), `"size"`, `"sise"`,
			1), nil, 201},
		{"create for a look", "", post, widgetsPath + "?dryRun=All", strings.Replace(body, `"w"`, `"x"`, 1), nil, 201},
		{"create from YAML", "", post, widgetsPath, "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: from-yaml}\nspec: {}\n",
			with(yamlType), 201},

		{"get", "get", get, w, "", nil, 200},
		{"get as anything", "get", get, w, "", as("*/*"), 200},
		{"get as the client libraries do", "get", get, w, "", as(jsonType + ", */*"), 200},
		{"get in another version", "get", get, widgetsBetaPath + "/w", "", nil, 200},
		{"get of the cluster", "get", get, shelvesPath + "/s", "", nil, 200},
		{"get as protobuf", "get", get, leasesPath + "/l", "", as(protobufType), 200},
		{"get as protobuf or JSON", "get", get, leasesPath + "/l", "", as(protobufType + "," + jsonType), 200},
		{"get as a table", "", get, w, "", as(tableType), 200},
		{"get as YAML", "", get, w, "", as(yamlType), 200},
		{"get by a person", "", get, w, "", []string{"User-Agent", "curl/8"}, 200},
		{"get of what is missing", "", get, widgetsPath + "/missing", "", nil, 404},
		{"get with an option", "", get, w + "?resourceVersion=0", "", nil, 200},
		{"head", "", http.MethodHead, w, "", nil, 405},
		{"get of a subresource", "", get, w + "/status", "", nil, 200},

		{"list", "list", get, widgetsPath, "", nil, 200},
		{"list all namespaces", "list", get, "/apis/shop.example.com/v1/widgets", "", nil, 200},
		{"list a page", "list", get, widgetsPath + "?limit=1", "", nil, 200},
		{"list what is selected", "list", get, widgetsPath + query("labelSelector", "env=dev"), "", nil, 200},
		{"list what a field selects", "list", get, widgetsPath + query("fieldSelector", "spec.size=small"), "", nil, 200},
		{"list any version", "list", get, widgetsPath + "?resourceVersion=0", "", nil, 200},
		{"list in another version", "list", get, widgetsBetaPath, "", nil, 200},
		{"list of the cluster", "list", get, shelvesPath, "", nil, 200},
		{"list compressed", "list", get, widgetsPath, "", []string{"Accept-Encoding", "gzip"}, 200},
		{"list as a table", "list", get, widgetsPath, "", as(tableType), 200},
		{"list as protobuf", "list", get, leasesPath, "", as(protobufType), 200},
		{"list as YAML", "list", get, widgetsPath, "", as(yamlType), 200},
		{"list by a person", "list", get, widgetsPath, "", []string{"User-Agent", "curl/8"}, 200},
		{"list of a past that never was", "", get, widgetsPath + "?resourceVersion=1&resourceVersionMatch=Exact", "", nil, 410},

		{"update", "update", put, w, strings.Replace(body, `"w"`, `"w","resourceVersion":"VERSION"`, 1), nil, 200},
		{"update of a past", "update", put, w, strings.Replace(body, `"w"`, `"w","resourceVersion":"1"`, 1), nil, 409},
		{"update without a version", "update", put, w, body, nil, 422},
		{"update of a status", "", put, w + "/status", strings.Replace(body, `"w"`, `"w","resourceVersion":"VERSION"`, 1), nil, 200},
		{"merge", "patch", patch, w, `{"spec":{"size":"small"}}`, with(mergePatch), 200},
		{"JSON patch", "patch", patch, w, `[{"op":"replace","path":"/spec/size","value":"large"}]`, with(jsonPatch), 200},
		{"apply", "patch", patch, w + "?fieldManager=me&force=true", body, with(applyPatch), 200},
		{"apply what is new", "patch", patch, widgetsPath + "/z?fieldManager=me", strings.Replace(body, `"w"`, `"z"`, 1), with(applyPatch), 201},
		{"apply YAML", "", patch, w + "?fieldManager=me&force=true", "apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {name: w}\n",
			with(applyPatch), 200},
		{"strategic merge", "", patch, w, `{"spec":{"size":"small"}}`, with(strategicType), 200},

		{"delete with options", "delete", del, widgetsPath + "/z", `{"preconditions":{"uid":"other"}}`, nil, 409},
		{"delete", "delete", del, w, "", nil, 200},
		{"delete what is missing", "delete", del, w, "", nil, 404},
		{"delete with options in the query", "", del, widgetsPath + "/z?propagationPolicy=Background", "", nil, 200},
		{"delete all", "", del, widgetsPath, "", nil, 200},
	} {
		if r.code == http.StatusGone && shared() {
			continue // its revisions begin before the server's
		}
		verbs := []string{"create", "delete", "get", "list", "patch", "update", "watch"}
		if head, tail, found := strings.Cut(r.body, "VERSION"); found {
			r.body = head + c.widget("w").ResourceVersion + tail
		}
		before := map[string]int{}
		for _, verb := range verbs {
			before[verb] = c.answered(verb)
		}
		var body any
		if r.body != "" {
			body = r.body
		}
		c.do(r.method, r.path, body, append([]string{"Accept", jsonType, "User-Agent", "annex-test"}, r.headers...)...).want(r.code)
		for _, verb := range verbs {
			want := 0
			if verb == r.verb && (verb != "list" || !shared()) { // their watch cache is upstream's
				want = 1
			}
			if got := c.answered(verb) - before[verb]; got != want {
				t.Errorf("%s: %d answers to %s were direct, want %d", r.name, got, verb, want)
			}
		}
	}
}

func TestFastPath_watches_areCounted(t *testing.T) {
	t.Parallel()
	c := start(t, differentialServer())
	c.create("w")
	c.createLease("l")
	for _, r := range []struct {
		path, accept string
		want         int
	}{
		{widgetsPath, jsonType, 1}, {widgetsPath, "", 1}, {widgetsBetaPath, jsonType + ";stream=watch", 1}, {leasesPath, protobufType, 1},
		{leasesPath, protobufType + "," + jsonType, 1},
		{widgetsPath, tableType, 0}, {widgetsPath, unremembered, 0}, {widgetsPath, yamlType, 0},
	} {
		before := c.answered("watch")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		response := c.send(ctx, http.MethodGet, r.path+"?watch=1", nil, "Accept", r.accept)
		if _, err := response.Body.Read(make([]byte, 1)); response.StatusCode == 200 && err != nil {
			t.Error(err)
		}
		cancel()
		response.Body.Close()
		if got := c.answered("watch") - before; got != r.want {
			t.Errorf("a watch of %s as %q: %d were direct, want %d", r.path, r.accept, got, r.want)
		}
	}
}

// An audit gets responses from upstream's handlers.
func TestFastPath_recordedResponses_areNot(t *testing.T) {
	t.Parallel()
	policy := policyFile(t, "rules:\n- level: RequestResponse\n")
	recorded := startWith(
		t,
		shop(),
		annex.Options{
			Storage: memory.Storage(),
			Audit:   annex.AuditOptions{PolicyFile: policy, Log: annex.AuditLogOptions{Path: newAuditLog(t).path}},
		},
	)
	recorded.create("w")
	recorded.get(widgetsPath + "/w").want(200)
	recorded.get(widgetsPath).want(200)
	recorded.delete(widgetsPath+"/w", nil).want(200)
	for _, verb := range []string{"create", "delete", "get", "list"} {
		if n := recorded.answered(verb); n != 0 {
			t.Errorf("%d answers to %s were direct", n, verb)
		}
	}
}
