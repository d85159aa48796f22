package apitest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/memory"
)

// seeded returns a random source whose seed is logged, or set by ANNEX_SEED.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("ANNEX_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("ANNEX_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// size returns the number of requests of a test, which ANNEX_REQUESTS can set; with -short it is a quarter.
func size(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv("ANNEX_REQUESTS")
	if text == "" {
		if testing.Short() {
			return usual / 4
		}
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// byUpstream returns an equivalent Accept header that only upstream's handlers answer: each of its clauses has a
// parameter that no handler knows.
func byUpstream(accept string) string {
	if accept == "" {
		accept = jsonType
	}
	clauses := strings.Split(accept, ",")
	for i := range clauses {
		clauses[i] += ";answered=upstream"
	}
	return strings.Join(clauses, ",")
}

// comparison sends requests to the direct handlers of a server and to upstream's.
type comparison struct {
	*client
	dice *rand.Rand
	// quiet is held for reading while both are asked, and for writing by changes of objects.
	quiet sync.RWMutex

	names, versions, tokens []string
	answered                map[string]int // by code, and by other properties that show the variety of the requests
}

func (d *comparison) one(of ...string) string { return of[d.dice.IntN(len(of))] }

// oneIn returns true in one of n cases.
func (d *comparison) oneIn(n int) bool { return d.dice.IntN(n) == 0 }

// readRequest is a random read.
type readRequest struct {
	method, path string
	headers      []string
	accept       string
}

func (r readRequest) String() string {
	return fmt.Sprintf("%s %s as %q with %q", r.method, r.path, r.accept, r.headers)
}

// forms are Accept headers. Those at the front are answered directly.
var forms = []string{
	jsonType,
	jsonType,
	jsonType,
	"",
	"*/*",
	jsonType + ", */*",
	protobufType,
	protobufType,
	protobufType + "," + jsonType,
	tableType + "," + jsonType,
	tableType,
	jsonType + ";as=Table;v=v1beta1;g=meta.k8s.io",
	protobufType + ";as=Table;v=v1;g=meta.k8s.io",
	jsonType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io," + jsonType,
	jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	protobufType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	protobufType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io," + jsonType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io," +
		jsonType,
	jsonType + ";as=Unknown;v=v1;g=meta.k8s.io",
	yamlType,
	yamlType + ";q=0.9," + jsonType + ";q=0.8",
	jsonType + ";pretty=1",
	jsonType + ";q=0",
	"application/cbor",
	"application/cbor," + jsonType,
	yamlType,
	yamlType + ";as=Table;v=v1;g=meta.k8s.io",
	yamlType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	yamlType + ";pretty=1",
	protobufType + ";as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
	protobufType + ";pretty=1",
	yamlType + ";as=Table;v=v1;v=v1;g=meta.k8s.io",
	jsonType + ";as=Table;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	jsonType + ";pretty=1;pretty=0",
	yamlType + "," + yamlType + ";as=Table;v=v1;g=meta.k8s.io",
	"image/png",
	"image/png, " + jsonType,
	"application/*",
	"text/html,*/*;q=0.8",
	",",
	jsonType + ";profile=x",
	jsonType + ";stream=watch",
	"APPLICATION/JSON",
	" " + jsonType + " ",
}

// request returns a random get or list.
func (d *comparison) request() readRequest {
	r := readRequest{method: http.MethodGet, path: d.path(), accept: forms[d.dice.IntN(10)]}
	if d.oneIn(3) {
		r.accept = d.one(forms...)
	}
	if !d.oneIn(3) {
		if query := d.query(); query != "" {
			r.path += "?" + query
		}
	}
	if d.oneIn(25) {
		r.method = d.one(http.MethodHead, http.MethodHead, http.MethodOptions)
	}
	r.headers = []string{
		"User-Agent",
		d.one("annex-test", "annex-test", "annex-test", "curl/8", "Mozilla/5.0 (X11)", "Wget/1"),
		"Accept-Encoding",
		d.one("gzip", "identity", "identity", "deflate, gzip;q=0.5", "gzip;q=0", "gzip, br", "x-gzip"),
	}
	if d.oneIn(40) {
		r.headers = append(r.headers, "Authorization", d.one("Bearer wrong", "Basic x", ""))
	}
	if d.oneIn(40) {
		r.headers = append(r.headers, "Impersonate-User", d.one("jane", "system:admin"))
	}
	if d.oneIn(40) {
		r.headers = append(r.headers, "Origin", d.one("https://elsewhere.example", "null"))
	}
	return r
}

func (d *comparison) path() string {
	switch d.dice.IntN(12) {
	case 0:
		return d.one(shelvesPath, shelvesPath, shelvesPath+"/s1", shelvesPath+"/missing", shelvesPath+"/s2/", shelvesPath+"/s1/status")
	case 1:
		path := d.one(stacksPath, stacksBetaPath)
		return d.one(path, path, path+"/zeros", path+"/all", path+"/in-a-map", path+"/missing")
	case 2:
		return d.one(
			"/apis/shop.example.com/v1/widgets",
			"/apis/shop.example.com/v1beta1/widgets",
			"/apis/shop.example.com/v1/widgets/w01",
			"/apis/shop.example.com/v1/namespaces/other/widgets",
			"/apis/shop.example.com/v1/namespaces/default/shelves/s1",
			"/apis/shop.example.com/v2/widgets",
			"/apis/shop.example.com//v1/namespaces/default/widgets/w01",
			widgetsPath+"/%77%30%31",
			widgetsPath+"/w01/",
			widgetsPath+"/w01/status",
			widgetsPath+"/w01/scale",
			"/apis/shop.example.com/v1/namespaces/default/gadgets",
			"/apis/shop.example.com/v1/namespaces/def ault/widgets",
			"/apis/other.example.com/v1/widgets",
			widgetsPath+"/..",
			widgetsPath+"/w%2f01",
			"/apis/shop.example.com/v1/namespaces//widgets",
			"/apis/shop.example.com/v1/namespaces/default/widgets//w01",
		)
	case 3:
		return d.one(widgetsPath, widgetsPath, widgetsBetaPath) + "/" + d.one("size-131071", "size-131072", "size-131073", "huge")
	case 4, 5:
		path := d.one(leasesPath, leasesPath, leasesBetaPath)
		return d.one(path, path, path+"/l1", path+"/l2", path+"/missing")
	case 6, 7, 8:
		return d.one(widgetsPath, widgetsPath, widgetsBetaPath) + "/" + d.one(d.names...)
	}
	return d.one(widgetsPath, widgetsPath, widgetsBetaPath)
}

func (d *comparison) query() string {
	if d.oneIn(2) {
		return d.usualQuery()
	}
	q := url.Values{}
	for range d.dice.IntN(4) {
		switch d.dice.IntN(20) {
		case 0, 1, 2:
			q.Set("limit", d.one("0", "1", "1", "3", "7", "500", "-1", "many", "9223372036854775808", "1.5", ""))
		case 3, 4:
			q.Set(
				"continue",
				d.one(append([]string{"nonsense", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8ifQ", ""}, d.tokens...)...),
			)
		case 5, 6:
			q.Set(
				"labelSelector",
				d.one(
					"env=dev",
					"env==prod",
					"env!=dev",
					"env in (dev,prod),html",
					"env notin (dev)",
					"!env",
					"env",
					"env=,",
					"html!=a-b",
					"env=dev,env=prod",
					"unknown=x",
					"env in ()",
					"env in (dev",
					"=",
					"n>3",
					"n<notanumber",
					"Env=dev",
					"env=not a label",
					"",
				),
			)
		case 7, 8:
			q.Set(
				"fieldSelector",
				d.one(
					"spec.size=small",
					"spec.size==small",
					"metadata.name=w01",
					"metadata.name=missing",
					"metadata.namespace=default",
					"metadata.namespace=other",
					"metadata.namespace!=default",
					"spec.nothing=1",
					"spec.size!=small",
					"spec.size=small,metadata.name=w03",
					"metadata.name=list-131071",
					"metadata.name=list-131072",
					"metadata.name=list-131073",
					"metadata.name=huge",
					"metadata.name=..",
					"spec.size",
					"=",
					"status.phase=x",
					"",
				),
			)
		case 9, 10, 11:
			q.Set(
				"resourceVersion",
				d.one(append([]string{"0", "0", "", "1", "99999999", "x", "-1", "18446744073709551616", "00"}, d.versions...)...),
			)
		case 12, 13:
			q.Set("resourceVersionMatch", d.one("Exact", "Exact", "NotOlderThan", "NotOlderThan", "Newest", "exact", ""))
		case 14:
			q.Set("pretty", d.one("true", "false", "1", "x", ""))
		case 15:
			q.Set("timeout", d.one("5s", "30", "x", "-1s", "0", "1h", ""))
		case 16:
			q.Set("sendInitialEvents", d.one("true", "false", "maybe"))
		case 17:
			q.Set("allowWatchBookmarks", d.one("true", "false", "maybe"))
		case 18:
			q.Set("timeoutSeconds", d.one("0", "1", "-1", "x"))
		case 19:
			q.Set(d.one("export", "watch", "exact", "shardSelector", "fieldManager", "dryRun", "Limit"), d.one("0", "false"))
		}
	}
	encoded := q.Encode()
	if encoded != "" && d.oneIn(20) {
		encoded += d.one("&", "&limit=2", "&labelSelector=env", "&%zz", "&a;b", "&resourceVersion=0", "#x")
	}
	return encoded
}

// usualQuery returns a query that clients typically send: for a page, a selection, or some version.
func (d *comparison) usualQuery() string {
	q := url.Values{}
	if d.oneIn(2) {
		q.Set("limit", d.one("1", "2", "3", "10", "500"))
	}
	switch {
	case d.oneIn(3) && len(d.tokens) > 0:
		q.Set("continue", d.one(d.tokens...))
	case d.oneIn(3):
		q.Set("resourceVersion", d.one("0", d.one(d.versions...)))
		q.Set("resourceVersionMatch", d.one("NotOlderThan", "Exact"))
	case d.oneIn(3):
		q.Set("resourceVersion", d.one(d.versions...))
		q.Set("resourceVersionMatch", "Exact")
	}
	if d.oneIn(3) {
		q.Set("labelSelector", d.one("env=dev", "env in (dev,prod),html", "env notin (dev)", "!env", "n"))
	}
	if d.oneIn(4) {
		q.Set("fieldSelector", d.one("spec.size=small", "metadata.name=w01", "metadata.namespace=default", "spec.size!=small"))
	}
	return q.Encode()
}

// ask sends a request to both, and fails the test if the responses differ.
func (d *comparison) ask(r readRequest) {
	d.t.Helper()
	d.quiet.RLock()
	defer d.quiet.RUnlock()
	for tries := 1; ; tries++ {
		got, want := d.do(
			r.method,
			r.path,
			nil,
			append(r.headers, "Accept", r.accept)...), d.do(
			r.method,
			r.path,
			nil,
			append(r.headers, "Accept", byUpstream(r.accept))...)
		for _, a := range []*answer{got, want} {
			for _, name := range []string{"Date", "Audit-Id"} { // of each request
				if a.header.Get(name) == "" {
					d.t.Errorf("%s has no %s", a.asked, name)
				}
				a.header.Del(name)
			}
		}
		if got.code == want.code && maps.EqualFunc(got.header, want.header, slices.Equal) && bytes.Equal(got.raw, want.raw) {
			d.note(r, got)
			return
		}
		// Tables show ages, which change every second, and the history is compacted at any time.
		if tries == 5 || !strings.Contains(r.accept, "as=Table") && got.code != http.StatusGone && want.code != http.StatusGone {
			d.t.Fatalf("%s: got %d %v\n%.1000s\nupstream: %d %v\n%.1000s", r, got.code, got.header, got.raw, want.code, want.header, want.raw)
		}
	}
}

// note counts the kind of a response, and keeps its continue token.
func (d *comparison) note(r readRequest, a *answer) {
	d.answered[strconv.Itoa(a.code)]++
	if a.header.Get("Content-Encoding") == "gzip" {
		d.answered["gzip"]++
	}
	for _, media := range []string{"protobuf", "yaml"} {
		if strings.Contains(a.header.Get("Content-Type"), media) {
			d.answered[media]++
		}
	}
	if len(a.header["Warning"]) > 0 {
		d.answered["warned"]++
	}
	var list struct {
		Metadata struct{ Continue string }
		Message  string
	}
	if a.header.Get("Content-Type") != jsonType || json.Unmarshal(a.raw, &list) != nil || list.Metadata.Continue == "" {
		return
	}
	d.answered["continued"]++
	if strings.Contains(r.path, "continue=") && a.code == http.StatusGone {
		d.answered["inconsistent"]++
	}
	if len(d.tokens) < 40 {
		d.tokens = append(d.tokens, list.Metadata.Continue)
	} else {
		d.tokens[d.dice.IntN(len(d.tokens))] = list.Metadata.Continue
	}
}

// fill creates objects of all kinds.
func (d *comparison) fill() {
	d.names = []string{"missing"}
	for i := range 40 {
		name := fmt.Sprintf("w%02d", i)
		labels := fields{"env": []string{"dev", "prod"}[i%2], "html": "a-b", "n": fmt.Sprint(i)}
		if i%5 == 0 {
			labels = fields{}
		}
		w := d.create(
			name,
			spec(fields{"size": []string{"small", "large"}[i%2], "options": fields{"html": "<&>\u2028", "i": fmt.Sprint(i)}}),
			metadata(fields{"labels": labels}),
		)
		d.names, d.versions = append(d.names, name), append(d.versions, w.ResourceVersion)
	}
	for i := range 10 {
		d.post(shelvesPath, shelf(fmt.Sprintf("s%d", i))).want(201)
		d.createLease(fmt.Sprintf("l%d", i))
	}
	for name, doc := range zeroSpecs() {
		d.post(stacksPath, stack(strings.NewReplacer(" ", "-").Replace(name), doc)).want(201)
	}
	d.create("huge", spec(fields{"size": "small", "options": fields{"html": strings.Repeat("x", 150<<10)}}))
	// Responses are compressed from a certain size. These have that size, and one byte less and more.
	for _, size := range []int{128<<10 - 1, 128 << 10, 128<<10 + 1} {
		get := fmt.Sprintf("size-%d", size)
		d.createSized(get, size, widgetsPath+"/"+get)
		list := fmt.Sprintf("list-%d", size)
		d.createSized(list, size, widgetsPath+query("fieldSelector", "metadata.name="+list))
	}
}

// createSized creates an object such that the response to a request has a size.
func (d *comparison) createSized(name string, size int, asked string) {
	d.t.Helper()
	padding := size / 2
	for range 5 { // resource versions have more digits as time goes by
		d.create(name, spec(fields{"options": fields{"padding": strings.Repeat("p", padding)}}))
		length := len(d.get(asked).want(200).raw)
		if length == size {
			return
		}
		padding += size - length
		d.delete(widgetsPath+"/"+name, nil).want(200)
	}
	d.t.Fatalf("%s cannot be made", name)
}

// change writes once.
func (d *comparison) change(dice *rand.Rand) {
	d.t.Helper()
	d.quiet.Lock()
	defer d.quiet.Unlock()
	name := fmt.Sprintf("w%02d", dice.IntN(40))
	switch dice.IntN(6) {
	case 0:
		if d.delete(widgetsPath+"/"+name, nil).code == 404 {
			d.versions = append(
				d.versions,
				d.create(name, spec(fields{"size": "small"}), metadata(fields{"labels": fields{"env": "dev"}})).ResourceVersion,
			)
		}
	case 1:
		d.patch(mergePatch, leasesPath+fmt.Sprintf("/l%d", dice.IntN(10)), fields{"spec": fields{"holderIdentity": fmt.Sprint(dice.Int())}}).
			want(200)
	default:
		if a := d.patch(
			mergePatch,
			widgetsPath+"/"+name,
			fields{
				"spec":     fields{"size": []string{"small", "large"}[dice.IntN(2)]},
				"metadata": fields{"annotations": fields{"n": fmt.Sprint(dice.Int())}},
			},
		); a.code == 200 {
			d.versions = append(d.versions, a.str("metadata", "resourceVersion"))
		}
	}
	d.versions = d.versions[max(0, len(d.versions)-200):]
}

// expire writes until the history no longer contains the state before.
func (d *comparison) expire() {
	d.t.Helper()
	old := d.create("old").ResourceVersion
	d.delete(widgetsPath+"/old", nil).want(200)
	for i := 0; d.get(widgetsPath+query("resourceVersion", old, "resourceVersionMatch", "Exact")).code != 410; i++ {
		d.change(d.dice)
		if i == 10000 {
			d.t.Fatal("nothing was compacted")
		}
	}
}

func differentialServer() annex.Server {
	server := shop()
	server.Groups = append(server.Groups, stackServer(stacks()).Groups...)
	server.Groups = append(server.Groups, zoo(leases(), crates()).Groups...)
	return server
}

// Reads are answered with cached encodings. Each is also sent to upstream's handlers of the same server, before and
// after the history was compacted, while objects change, and after a restart: status, headers and bytes are the same.
// ANNEX_REQUESTS sets the number of requests, ANNEX_SEED their random source.
func TestDifferential_reads_likeUpstream(t *testing.T) {
	notOn(t, notCompacted, etcd.Name)
	t.Parallel()
	dice, requests := seeded(t), size(t, 1600)
	d := &comparison{dice: dice, answered: map[string]int{}}
	least := map[string]int{"200": requests / 3, "400": requests / 100, "404": requests / 50, "406": requests / 100,
		"410": requests / 400, "403": 1, "gzip": requests / 100, "protobuf": requests / 50, "yaml": requests / 50, "warned": requests / 50,
		"continued": requests / 100}
	tooFew := func() []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(least)), func(what string) bool { return d.answered[what] >= least[what] })
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: t.TempDir(), HistoryAge: -1, HistoryRevisions: 150}
	serveZoo(t, "at first", differentialServer(), options, func(c *client) {
		d.client = c
		d.fill()
		for range requests / 4 {
			d.ask(d.request())
		}
		d.expire()
		for range requests / 4 {
			d.ask(d.request())
		}
	})
	serveZoo(t, "after a restart", differentialServer(), options, func(c *client) {
		d.client = c
		for range requests / 4 {
			d.ask(d.request())
		}
		// Objects change meanwhile, but not between the two compared requests.
		writes := rand.New(rand.NewPCG(dice.Uint64(), 2))
		// Some dice leave out a kind of answer for long.
		for i := 0; i < requests/4 || len(tooFew()) > 0 && i < 10*requests; i++ {
			if i%3 == 0 {
				d.change(writes)
			}
			d.ask(d.request())
		}
	})
	t.Logf("%d requests, answered: %v", requests, d.answered)
	for _, what := range tooFew() {
		t.Errorf("the requests are too much alike: %d of %s, want %d", d.answered[what], what, least[what])
	}
}

// The same for a storage in memory that is compacted while it is read.
func TestDifferential_readsDuringCompaction_likeUpstream(t *testing.T) {
	notOn(t, notCompacted, etcd.Name)
	t.Parallel()
	dice, requests := seeded(t), size(t, 400)
	d := &comparison{dice: dice, answered: map[string]int{}}
	d.client = startWith(t, differentialServer(), annex.Options{Storage: memory.Storage(), HistoryAge: -1, HistoryRevisions: 20})
	d.fill()
	writes := rand.New(rand.NewPCG(dice.Uint64(), 2))
	least := requests / 100
	for i := 0; i < requests || d.answered["410"] < least && i < 10*requests; i++ {
		if i%(requests/4) == 0 {
			d.expire() // The history is compacted at most once a second.
		}
		d.change(writes)
		d.ask(d.request())
	}
	t.Logf("%d requests, answered: %v", requests, d.answered)
	if d.answered["410"] < least {
		t.Errorf("%d were too old, want %d", d.answered["410"], least)
	}
}
