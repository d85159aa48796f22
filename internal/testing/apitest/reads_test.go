package apitest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/embedded"
)

// unremembered is a media type that upstream takes for JSON, and that only upstream's handlers answer.
const unremembered = jsonType + ";answered=upstream"

const metadataType = jsonType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

// withoutRevision matches revisions: that of a shared storage rises all the time.
var withoutRevision = regexp.MustCompile(`, current: \d+|resourceVersion"?: ?"\d+"`)

// Reads are answered with cached encodings. Each is also sent to upstream's handlers of the same server: status,
// headers and bytes are the same.
func TestCachedReads_likeUpstream(t *testing.T) {
	t.Parallel()
	server := shop()
	server.Groups = append(server.Groups, stackServer(stacks()).Groups...)
	c := start(t, server)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))

	var versions []string // resource versions at some times
	names := []string{"missing"}
	for i := range 40 {
		name := fmt.Sprintf("w%02d", i)
		labels := fields{"env": []string{"dev", "prod"}[i%2], "html": "a-b"}
		w := c.create(
			name,
			spec(fields{"size": []string{"small", "large"}[i%2], "options": fields{"html": "<&>\u2028", "i": fmt.Sprint(i)}}),
			metadata(fields{"labels": labels}),
		)
		names, versions = append(names, name), append(versions, w.ResourceVersion)
	}
	for i := range 10 {
		c.post(shelvesPath, shelf(fmt.Sprintf("s%d", i))).want(201)
	}
	for name, doc := range zeroSpecs() {
		c.post(stacksPath, stack(strings.NewReplacer(" ", "-").Replace(name), doc)).want(201)
	}
	for range 15 {
		name := names[1+random.IntN(len(names)-1)]
		versions = append(
			versions,
			c.patch(mergePatch, widgetsPath+"/"+name, fields{"metadata": fields{"annotations": fields{"n": fmt.Sprint(random.Int())}}}).
				want(200).
				widget().
				ResourceVersion,
		)
	}
	c.delete(widgetsPath+"/w39", nil).want(200)
	c.post(widgetsPath, widget("huge", spec(fields{"size": "small", "options": fields{"html": strings.Repeat("x", 150<<10)}}))).want(201)
	token := c.get(widgetsPath+"?limit=3").want(200).str("metadata", "continue")

	one := func(of ...string) string { return of[random.IntN(len(of))] }
	paths := func() string {
		switch random.IntN(10) {
		case 0:
			return one(shelvesPath, shelvesPath+"/s1", shelvesPath+"/missing", "/apis/shop.example.com/v1/shelves/s2/")
		case 1:
			path := one(stacksPath, stacksBetaPath)
			return one(path, path+"/zeros", path+"/all", path+"/in-a-map", path+"/missing")
		case 2:
			return one(
				"/apis/shop.example.com/v1/widgets",
				"/apis/shop.example.com/v1beta1/widgets",
				"/apis/shop.example.com/v1/widgets/w01",
				"/apis/shop.example.com/v1/namespaces/other/widgets",
				"/apis/shop.example.com/v1/namespaces/default/shelves/s1",
				"/apis/shop.example.com/v2/widgets",
				"/apis/shop.example.com//v1/namespaces/default/widgets/w01",
				widgetsPath+"/%77%30%31",
				widgetsPath+"/w01/",
			)
		case 3:
			return one(widgetsPath, widgetsBetaPath) + "/huge"
		case 4, 5, 6:
			return one(widgetsPath, widgetsBetaPath) + "/" + one(names...)
		}
		return one(widgetsPath, widgetsBetaPath)
	}
	queries := func() string {
		q := url.Values{}
		for range random.IntN(3) {
			switch random.IntN(10) {
			case 0:
				q.Set("limit", one("0", "1", "7", "500", "-1", "many"))
			case 1:
				q.Set("continue", one(token, "nonsense"))
			case 2:
				q.Set("labelSelector", one("env=dev", "env in (dev,prod),html", "!env", "env=,", "html!=a-b"))
			case 3:
				q.Set("fieldSelector", one("spec.size=small", "metadata.name=w01", "metadata.name=missing", "spec.nothing=1", "spec.size!=small"))
			case 4:
				q.Set("resourceVersion", one(append([]string{"0", "", "1", "99999999", "x"}, versions...)...))
			case 5:
				q.Set("resourceVersionMatch", one("Exact", "NotOlderThan", "Newest"))
			case 6:
				q.Set("pretty", one("true", "false", "x"))
			case 7:
				q.Set("timeout", one("5s", "x"))
			case 8:
				q.Set("export", "1")
			case 9:
				q.Set("includeObject", one("", "None", "Metadata", "Object", "nothing"))
			}
		}
		return q.Encode()
	}
	asked := map[int]int{}
	for i := range 1200 {
		path, method := paths(), http.MethodGet
		if query := queries(); query != "" && random.IntN(2) == 0 {
			path += "?" + query
		}
		if random.IntN(20) == 0 {
			method = http.MethodHead
		}
		headers := []string{
			"User-Agent",
			one("annex-test", "annex-test", "curl/8", "Mozilla/5.0 (X11)"),
			"Accept-Encoding",
			one("gzip", "identity"),
		}
		form := one(
			jsonType,
			jsonType,
			jsonType,
			"*/*",
			jsonType+", */*",
			"",
			protobufType+","+jsonType,
			tableType,
			tableType,
			tableType+","+jsonType,
			jsonType+";as=Table;v=v1beta1;g=meta.k8s.io",
			jsonType+";as=Table;v=v2;g=meta.k8s.io,"+jsonType,
			metadataType,
			metadataType,
			jsonType+";as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
			yamlType,
			protobufType,
			yamlType+";as=Table;v=v1;g=meta.k8s.io",
			yamlType+";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
			jsonType+";pretty=1",
			tableType+";pretty=1",
			metadataType+";pretty=1",
			protobufType+";as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
			protobufType+";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,"+metadataType+","+jsonType,
			protobufType+";as=Table;v=v1;g=meta.k8s.io,"+tableType,
		)
		// The request to upstream accepts the same, with a meaningless parameter.
		twin := form
		switch form {
		case jsonType, "*/*", "", jsonType + ", */*":
			twin = unremembered
		case jsonType + ";pretty=1":
			twin = unremembered + ";pretty=1"
		case yamlType, protobufType:
			twin += ";answered=upstream"
		case protobufType + "," + jsonType:
			twin = protobufType + ";answered=upstream," + unremembered
		default:
			if strings.Contains(form, ";as=") {
				first, rest, _ := strings.Cut(form, ",")
				twin = strings.TrimSuffix(first+";answered=upstream,"+rest, ",")
			}
		}
		got, want, same := (*answer)(nil), (*answer)(nil), false
		// A table shows ages, which change every second.
		for tries := 0; !same && (tries == 0 || tries < 5 && strings.Contains(form, "as=Table")); tries++ {
			got, want = c.do(method, path, nil, append(headers, "Accept", form)...), c.do(method, path, nil, append(headers, "Accept", twin)...)
			for _, a := range []*answer{got, want} {
				for _, name := range []string{"Date", "Audit-Id"} { // of each request
					if a.header.Get(name) == "" {
						t.Errorf("%s has no %s", a.asked, name)
					}
					a.header.Del(name)
				}
			}
			if shared() { // others write there
				got.header.Del("Content-Length")
				want.header.Del("Content-Length")
				got.raw, want.raw = withoutRevision.ReplaceAll(got.raw, nil), withoutRevision.ReplaceAll(want.raw, nil)
			}
			same = got.code == want.code && maps.EqualFunc(got.header, want.header, slices.Equal) && bytes.Equal(got.raw, want.raw)
		}
		asked[got.code]++
		if !same {
			t.Fatalf(
				"request %d, %s %s as %q: got %d %v\n%.300s\nupstream: %d %v\n%.300s",
				i,
				method,
				path,
				form,
				got.code,
				got.header,
				got.raw,
				want.code,
				want.header,
				want.raw,
			)
		}
	}
	if asked[200] < 250 || asked[404] == 0 || asked[400] == 0 {
		t.Errorf("the requests are too much alike: answers by code: %v", asked)
	}

	for _, query := range []string{
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=env%3Ddev",
		"watch=1&resourceVersion=0&allowWatchBookmarks=true",
		"watch=1",
	} {
		for _, path := range []string{widgetsPath, widgetsBetaPath, shelvesPath, stacksPath, stacksBetaPath} {
			count := 10 // all of the shelves
			if path == widgetsPath || path == widgetsBetaPath {
				count = 19
			} else if strings.Contains(query, "labelSelector") {
				continue
			}
			events := func(accept string) string {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				response := c.send(ctx, http.MethodGet, path+"?"+query, nil, "Accept", accept)
				defer response.Body.Close()
				var lines strings.Builder
				var line []byte
				for read := 0; read < count; {
					var b [1]byte
					if _, err := io.ReadFull(response.Body, b[:]); err != nil {
						t.Fatalf("watch %s: after %d events: %v", path, read, err)
					}
					if line = append(line, b[0]); b[0] == '\n' {
						read++
						lines.Write(line)
						line = line[:0]
					}
				}
				return lines.String()
			}
			first, again, want := events(jsonType), events(jsonType), events(unremembered)
			if first != want || again != want {
				t.Errorf("watch %s?%s: got\n%.500s\nthen\n%.500s\nupstream:\n%.500s", path, query, first, again, want)
			}
		}
	}
}

// A get sees every write that was acknowledged before it, and an object that was recreated under the same name.
func TestCachedReads_seeLatestWrite(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for i := range 50 {
		n := fmt.Sprint(i)
		made := c.create("w", spec(fields{"size": "small", "options": fields{"n": n}}))
		for range 2 { // the second time, it is cached
			if got := c.widget("w"); got.UID != made.UID || got.Spec.Options["n"] != n {
				t.Fatalf("got %s with n=%s, want %s with %s", got.UID, got.Spec.Options["n"], made.UID, n)
			}
		}
		changed := c.patch(mergePatch, widgetsPath+"/w", spec(fields{"options": fields{"n": "changed"}})).want(200).widget()
		if got := c.widget("w"); got.ResourceVersion != changed.ResourceVersion || got.Spec.Options["n"] != "changed" {
			t.Fatalf("got %s at %s, want %s", got.Spec.Options["n"], got.ResourceVersion, changed.ResourceVersion)
		}
		c.delete(widgetsPath+"/w", nil).want(200)
		c.get(widgetsPath + "/w").want(404)
	}
}

// The counts of reads at /metrics do not depend on the handler.
func TestCachedReads_metrics(t *testing.T) {
	c := start(t, shop())
	c.create("w", spec(fields{"size": "small"}))
	counted := func(verb string) map[string]float64 {
		of := map[string]float64{}
		for line := range strings.Lines(string(c.get("/metrics").want(200).raw)) {
			for _, metric := range []string{"apiserver_request_total{", "apiserver_response_sizes_sum{", "apiserver_response_sizes_count{",
				"apiserver_request_duration_seconds_count{"} {
				if strings.HasPrefix(line, metric) && strings.Contains(line, `resource="widgets"`) && strings.Contains(line, verb) {
					name, text, _ := strings.Cut(strings.TrimSpace(line), "} ")
					value, err := strconv.ParseFloat(text, 64)
					if err != nil {
						t.Fatal(err)
					}
					of[name] = value
				}
			}
		}
		return of
	}
	for _, r := range []struct{ path, verb string }{{widgetsPath + "/w", `verb="GET"`}, {widgetsPath, `verb="LIST"`}} {
		c.get(r.path).want(200) // so that all series exist
		before := counted(r.verb)
		c.get(r.path).want(200)
		direct := counted(r.verb)
		c.get(r.path, "Accept", unremembered).want(200)
		upstream := counted(r.verb)
		series := 0
		for name, value := range upstream {
			if value == before[name] {
				continue // of another test's requests
			}
			if series++; direct[name]-before[name] != value-direct[name] {
				t.Errorf("%s: %s grew by %v, and by %v for upstream's", r.path, name, direct[name]-before[name], value-direct[name])
			}
		}
		if series != 4 {
			t.Errorf("%s: %d series grew, want 4", r.path, series)
		}
	}
}

// An object stored by a program without a default for a field gets the default for clients of a program that has one.
func TestCachedReads_defaultsOfOlderObjects(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir()}
	plain := func(kind *annex.KindBuilder[v1.Widget]) annex.Server {
		return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
	}
	addOptions := func(w *v1.Widget) {
		if w.Spec.Options == nil {
			w.Spec.Options = map[string]string{"added": "later"}
		}
	}
	kind := func() *annex.KindBuilder[v1.Widget] { return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API) }
	serveZoo(t, "without the default", plain(kind()), options, func(c *client) {
		for i := range 3 {
			c.post(widgetsPath, fmt.Sprintf(`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w%d"}}`, i)).want(201)
		}
		c.patch(mergePatch, widgetsPath+"/w0", fields{"spec": fields{"options": fields{"own": "one"}}}).want(200)
		for range 2 {
			if body := string(c.get(widgetsPath).want(200).raw); strings.Contains(body, "added") || !strings.Contains(body, "own") {
				t.Errorf("listed as %s", body)
			}
		}
	})
	serveZoo(t, "with it", plain(kind().Default(addOptions)), options, func(c *client) {
		for range 2 {
			for _, path := range []string{widgetsPath, widgetsPath + "/w0", widgetsPath + "/w1"} {
				got, want := c.do(http.MethodGet, path, nil, "Accept", jsonType), c.do(http.MethodGet, path, nil, "Accept", unremembered)
				if !bytes.Equal(got.raw, want.raw) {
					t.Errorf("%s: got %s, want %s", path, got.raw, want.raw)
				}
				if path == widgetsPath {
					ours, upstreams := c.get(path, "Accept", metadataType), c.get(path, "Accept", metadataType+";answered=upstream")
					if !bytes.Equal(ours.raw, upstreams.raw) {
						t.Errorf("metadata: got %s, want %s", ours.raw, upstreams.raw)
					}
				}
				if added := strings.Count(string(got.raw), `"added":"later"`); added != map[string]int{widgetsPath: 2, widgetsPath + "/w1": 1}[path] {
					t.Errorf("%s: %d have the default: %s", path, added, got.raw)
				}
			}
		}
	})
}
