package apitest_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// askedTwice sends the same requests to one of two servers, and keeps a difference between them: the revision of an
// object.
type askedTwice struct {
	*client
	versions map[string]string // of objects, by path
}

// askedOfUpstream requests JSON in a form that only upstream's handlers negotiate.
const askedOfUpstream = jsonType + ", text/x-other"

var (
	revisions = regexp.MustCompile(`resourceVersion[\\": ]+\d+`)
	moments   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	uids      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	managers  = regexp.MustCompile(`\\?"managedFields\\?":\[.*?\]\}?[,}]`)
	generated = regexp.MustCompile(`made-[a-z0-9]{5}`)
	reasons   = regexp.MustCompile(`"causes":\[\{.*?\}\]`)
	conflicts = regexp.MustCompile(`"message":"(?:Apply failed with|failed to create typed) (?:[^"\\]|\\.)*`)
	ages      = regexp.MustCompile(`(?m)"(?:\d+[smh])+"|- (?:\d+[smh])+$`) // in tables as JSON and as YAML
	prefixes  = regexp.MustCompile(`Key: /test/[0-9a-f]+`)                 // of tests that share a storage
)

// readable returns the body of a response as JSON, if it is compressed or protobuf.
func readable(a *answer) []byte {
	a.t.Helper()
	raw := a.raw
	if a.header.Get("Content-Encoding") == "gzip" {
		from, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			a.t.Fatal(err)
		}
		if raw, err = io.ReadAll(from); err != nil {
			a.t.Fatal(err)
		}
	}
	if a.header.Get("Content-Type") != protobufType {
		return raw
	}
	var into message = &metav1.Status{}
	if bytes.Contains(raw[:min(60, len(raw))], []byte("\x05Lease")) {
		into = &coordinationv1.Lease{}
	}
	open(a.t, raw, into)
	read, err := json.Marshal(into)
	if err != nil {
		a.t.Fatal(err)
	}
	return read
}

// comparable returns the body of a response without the parts that differ between servers or moments.
func (w *askedTwice) comparable(a *answer) string {
	body := strings.ReplaceAll(string(readable(a)), `\\`, "") // errors quote objects, and strings in these
	for _, same := range []*regexp.Regexp{revisions, moments, uids, generated, prefixes, ages} {
		body = same.ReplaceAllString(body, same.String())
	}
	body = managers.ReplaceAllStringFunc(body, func(all string) string {
		// Managers are in the order of the seconds in which they wrote.
		begin, between := `"managedFields":[`, `,{"manager":`
		if all[0] == '\\' { // in an error that quotes the object
			begin, between = `\"managedFields\":[`, `,{\"manager\":`
		}
		end := strings.LastIndexByte(all, ']')
		entries := strings.Split(","+all[len(begin):end], between)
		slices.Sort(entries)
		return begin + strings.Join(entries, between) + all[end:]
	})
	body = managersByLines(body)
	// Upstream lists the conflicts of an applied configuration in any order, twice, and its errors too.
	body = reasons.ReplaceAllStringFunc(body, func(all string) string {
		begin, rest, _ := strings.Cut(all, `[`)
		each := strings.Split(strings.TrimSuffix(rest, `]`), `},{`)
		for i := range each {
			each[i] = strings.Trim(each[i], `{}`)
		}
		slices.Sort(each)
		return begin + `[` + strings.Join(each, `},{`) + `]`
	})
	body = conflicts.ReplaceAllStringFunc(body, func(all string) string {
		lines := strings.Split(all, `\n`)
		slices.Sort(lines)
		return strings.Join(lines, `\n`)
	})
	if strings.Contains(body, "FieldManagerConflict") && strings.Contains(strings.TrimSpace(body), "\n") { // the same in YAML, and indented
		lines := strings.Split(body, "\n")
		slices.Sort(lines)
		body = strings.Join(lines, "\n")
	}
	headers := maps.Clone(a.header)
	for _, other := range []string{"Audit-Id", "Date", "Content-Length"} {
		headers.Del(other)
	}
	var lines []string
	for name, values := range headers {
		lines = append(lines, fmt.Sprintf("%s: %q", name, values))
	}
	slices.Sort(lines)
	return fmt.Sprintf("%d\n%s\n%s", a.code, strings.Join(lines, "\n"), body)
}

// managersByLines sorts the managers in YAML and in indented JSON.
func managersByLines(body string) string {
	lines := strings.SplitAfter(body, "\n")
	indent := func(i int) int { return len(lines[i]) - len(strings.TrimLeft(lines[i], " ")) }
	for i := range lines {
		if key := strings.TrimSpace(lines[i]); key != "managedFields:" && key != `"managedFields": [` {
			continue
		}
		end := i + 1
		for end < len(lines) && (indent(end) > indent(i) || strings.HasPrefix(lines[end][indent(i):], "- ")) {
			end++
		}
		var entries []string
		for at := i + 1; at < end; at++ {
			switch line := lines[at]; {
			case indent(at) > indent(i+1):
				entries[len(entries)-1] += line
			case strings.HasPrefix(line[indent(at):], "}"):
				entries[len(entries)-1] += strings.Replace(line, ",", "", 1)
			default:
				entries = append(entries, line)
			}
		}
		slices.Sort(entries)
		lines[i] += strings.Join(entries, "")
		clear(lines[i+1 : end])
	}
	return strings.Join(lines, "")
}

// difference returns the places where two responses begin to differ.
func difference(upstreams, ours string) string {
	at := 0
	for at < min(len(upstreams), len(ours)) && upstreams[at] == ours[at] {
		at++
	}
	from := max(0, at-300)
	return fmt.Sprintf("upstream's\n%.900s\nours\n%.900s\nfrom %d bytes on", upstreams[from:], ours[from:], from)
}

// writeRequest is a request that is sent to both servers.
type writeRequest struct {
	method, path, query string
	object              string // its path
	collection          bool   // it deletes all selected objects
	accept              string // JSON if it is empty
	headers             []string
	body                string // VERSION in it stands for the resource version of the object of the path
}

func (r writeRequest) String() string {
	return fmt.Sprintf("%s %s%s as %q, %q %.1000s", r.method, r.path, r.query, r.accept, r.headers, r.body)
}

func (w *askedTwice) ask(r writeRequest) *answer {
	w.t.Helper()
	accept := cmp.Or(r.accept, jsonType)
	body := strings.ReplaceAll(r.body, "VERSION", w.versions[r.object])
	a := w.do(r.method, r.path+r.query, body, append([]string{"Accept", accept}, r.headers...)...)
	if read := w.get(r.object); read.code == http.StatusOK {
		w.versions[r.object] = read.str("metadata", "resourceVersion")
	}
	return a
}

// TestWrites_likeUpstream sends the same requests to two servers: one has the fast path, the other leaves
// all requests to upstream's handlers. Status, headers, bodies and stored objects are the same.
func TestWrites_likeUpstream(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	all, answered := 0, map[int]int{}
	t.Run("of", func(t *testing.T) {
		for name, test := range map[string]struct {
			server func() annex.Server
			random func(dice *rand.Rand) writeRequest
		}{
			"widgets": {shop, func(dice *rand.Rand) writeRequest { return randomWrite(dice, widgetWrites) }},
			"beta widgets": {shop, func(dice *rand.Rand) writeRequest {
				return randomWrite(dice, []kindWrites{widgetWrites, betaWrites}[dice.IntN(2)])
			}},
			"shelves": {shop, func(dice *rand.Rand) writeRequest { return randomWrite(dice, shelfWrites) }},
			"marked": {func() annex.Server {
				return annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{markedCrates()}}}}
			}, func(dice *rand.Rand) writeRequest { return randomWrite(dice, crateWrites) }},
			"leases": {func() annex.Server { return zoo() }, func(dice *rand.Rand) writeRequest {
				r := randomWrite(dice, leaseWrites)
				if r.body == "" || dice.IntN(4) > 0 || r.method != http.MethodPost && r.method != http.MethodPut {
					return r
				}
				name := path.Base(r.object)
				body := oneOf(dice, []string{string(envelope(t, "zoo.example.com/v1", "Lease", lease(name, "me"))),
					string(envelope(t, "zoo.example.com/v1beta1", "Lease", lease(name, "me"))),
					string(envelope(t, "zoo.example.com/v1", "Lease", lease("b", "you"))), "k8s\x00nonsense", "nonsense"})
				r.body, r.headers = body, append(r.headers, "Content-Type", protobufType)
				return r
			}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dice, requests, codes := seeded(t), size(t, 300), map[int]int{}
				upstreams := startWith(t, test.server(), annex.Options{Storage: memory.Storage(), DisableFastPath: true})
				theirs := &askedTwice{upstreams, map[string]string{}}
				ours := &askedTwice{start(t, test.server()), map[string]string{}}
				for range requests {
					r := test.random(dice)
					a, b := theirs.ask(r), ours.ask(r)
					codes[b.code]++
					if r.collection {
						a.raw, b.raw = nil, nil // in the order of names, of which some are generated
					}
					if x, y := theirs.comparable(a), ours.comparable(b); x != y {
						t.Fatalf("%s\n%s", r, difference(x, y))
					}
					if x, y := theirs.comparable(theirs.get(r.object)), ours.comparable(ours.get(r.object)); x != y {
						t.Fatalf("%s: then\n%s", r, difference(x, y))
					}
				}
				t.Logf("%d requests, answered: %v", requests, codes)
				mu.Lock()
				defer mu.Unlock()
				all += requests
				for code, n := range codes {
					answered[code] += n
				}
			})
		}
	})
	for _, code := range []int{200, 201, 400, 404, 409} {
		if answered[code] < all/200 {
			t.Errorf("the requests are too much alike: of %d, %d were answered with %d", all, answered[code], code)
		}
	}
}

// kindWrites are the parts of random writes of a kind.
type kindWrites struct {
	path       string
	apiVersion string
	kind       string
	fields     []string // top-level fields of whole objects
	merges     []string
	operations []string
	applied    []string
}

var widgetWrites = kindWrites{
	path: widgetsPath, apiVersion: "shop.example.com/v1", kind: "Widget",
	fields: []string{
		`"spec":{"replicas":3,"parts":[{"name":"wheel","count":4},{"name":"door"}],"options":{"color":"red"}}`,
		`"spec":{"size":"large","parts":[{"name":"door","count":2}]}`,
		`"spec":{}`,
		`"spec":{"size":"huge"}`,
		`"spec":null`,
		`"spec":{"parts":[{"name":"a"},{"name":"a"}]}`,
		`"spec":{"replicas":"three"}`,
		`"spec":{"unknown":1}`,
		`"spec":{"size":"small","size":"large"}`,
		`"status":{"phase":"Mine"},"spec":{"options":{"prepared":"please","frozen":"a"}}`,
		`"spec":{"options":{"frozen":"b"}}`,
		`"spec":{"replicas":3.0}`,
	},
	merges: []string{
		`{"spec":{"size":"large"}}`,
		`{"spec":{"size":null,"replicas":null}}`,
		`{"spec":{"parts":[{"name":"roof"}]}}`,
		`{"spec":{"options":{"color":null,"a":"b"}}}`,
		`{"spec":{"unknown":1}}`,
		`{"spec":{"replicas":"x"}}`,
		`{"spec":null}`,
		`{"status":{"phase":"Mine"}}`,
	},
	operations: []string{
		`{"op":"replace","path":"/spec/size","value":"small"}`,
		`{"op":"add","path":"/spec/parts/-","value":{"name":"roof"}}`,
		`{"op":"remove","path":"/spec/parts/0"}`,
		`{"op":"test","path":"/spec/size","value":"small"}`,
		`{"op":"add","path":"/spec/unknown","value":1}`,
		`{"op":"copy","from":"/spec/size","path":"/spec/options/size"}`,
	},
	applied: []string{
		`"spec":{"size":"large"}`,
		`"spec":{"parts":[{"name":"wheel","count":1}]}`,
		`"spec":{"parts":[{"name":"wheel","count":9},{"name":"door","count":9}],"options":{"color":"blue"}}`,
		`"spec":{"replicas":2}`,
		`"spec":{}`,
		`"spec":{"replicas":2.5}`,
		`"spec":{"unknown":1}`,
		`"spec":{"parts":[{"name":"a"},{"name":"a"}]}`,
		`"spec":{"size":null}`,
		`"spec":{"size":"\u0061"}`,
	},
}

var betaWrites = kindWrites{
	path:       widgetsBetaPath,
	apiVersion: "shop.example.com/v1beta1",
	kind:       "Widget",
	fields: []string{
		`"spec":{"replicas":3,"parts":["wheel","door"],"options":{"color":"red"}}`,
		`"spec":{"size":"large","parts":["door"]}`,
		`"spec":{"parts":[{"name":"a"}]}`,
	},
	merges:     []string{`{"spec":{"size":"large"}}`, `{"spec":{"parts":["roof"]}}`, `{"spec":{"parts":null}}`},
	operations: []string{`{"op":"replace","path":"/spec/size","value":"small"}`, `{"op":"add","path":"/spec/parts/-","value":"roof"}`},
	applied:    []string{`"spec":{"size":"large"}`, `"spec":{"parts":["wheel"]}`, `"spec":{"options":{"color":"blue"}}`},
}

var shelfWrites = kindWrites{
	path: shelvesPath, apiVersion: "shop.example.com/v1", kind: "Shelf",
	fields:     []string{`"widgets":["a","b"]`, `"widgets":[]`, `"widgets":"a"`, `"other":1`, `"widgets":["a","a"]`},
	merges:     []string{`{"widgets":["c"]}`, `{"widgets":null}`, `{"widgets":[1]}`},
	operations: []string{`{"op":"add","path":"/widgets/-","value":"d"}`, `{"op":"replace","path":"/widgets","value":["e"]}`},
	applied:    []string{`"widgets":["a"]`, `"widgets":["b","c"]`, `"widgets":null`},
}

var leaseWrites = kindWrites{
	path:       leasesPath,
	apiVersion: "zoo.example.com/v1",
	kind:       "Lease",
	fields: []string{
		`"spec":{"holderIdentity":"me","leaseDurationSeconds":10,"renewTime":"2030-01-01T00:00:00.000000Z"}`,
		`"spec":{}`,
		`"spec":{"leaseDurationSeconds":"x"}`,
		`"spec":{"renewTime":"now"}`,
		`"spec":{"other":1}`,
	},
	merges: []string{
		`{"spec":{"holderIdentity":"you"}}`,
		`{"spec":{"leaseDurationSeconds":null}}`,
		`{"spec":{"renewTime":"2030-01-01T00:00:01.5Z"}}`,
		`{"spec":{"leaseTransitions":1.0}}`,
	},
	operations: []string{`{"op":"add","path":"/spec/leaseTransitions","value":3}`, `{"op":"remove","path":"/spec/holderIdentity"}`},
	applied: []string{
		`"spec":{"holderIdentity":"applied"}`,
		`"spec":{"leaseDurationSeconds":5}`,
		`"spec":{"renewTime":"2031-01-01T00:00:00.000000Z"}`,
	},
}

var crateWrites = kindWrites{
	path:       markedPath,
	apiVersion: "marked.shop.example.com/v1",
	kind:       "Crate",
	fields: []string{
		`"spec":{"owner":"me","goods":[{"name":"tea"},{"name":"salt","count":0}],"tags":["a","b"]}`,
		`"spec":{"owner":"","size":"large","boxes":0}`,
		`"spec":{"owner":"me","boxes":4,"weight":"5kg"}`,
		`"spec":{"owner":"me","weight":7,"extra":{"any":[1,{"thing":true}]}}`,
		`"spec":{"owner":"me","size":"huge"}`,
		`"spec":{}`,
		`"spec":{"owner":"me","unknown":1}`,
		`"spec":{"owner":"me","until":null}`,
		`"spec":{"owner":"me","until":"2030-01-01T00:00:00Z","label":"ab"}`,
		`"spec":{"owner":"me","tags":["a","a"]}`,
		`"spec":{"owner":"me","boxes":"x"}`,
	},
	merges: []string{
		`{"spec":{"size":"large"}}`,
		`{"spec":{"size":null,"boxes":null}}`,
		`{"spec":{"goods":[{"name":"oil","count":0}]}}`,
		`{"spec":{"owner":"you"}}`,
		`{"spec":{"boxes":99}}`,
		`{"spec":{"extra":{"more":1}}}`,
		`{"spec":{"unknown":1}}`,
		`{"spec":{"tags":["c"]}}`,
	},
	operations: []string{
		`{"op":"replace","path":"/spec/size","value":"small"}`,
		`{"op":"add","path":"/spec/goods","value":[{"name":"oil"}]}`,
		`{"op":"remove","path":"/spec/boxes"}`,
	},
	applied: []string{
		`"spec":{"owner":"me","size":"large"}`,
		`"spec":{"owner":"me","goods":[{"name":"tea","count":2}]}`,
		`"spec":{"owner":"me","tags":["b"]}`,
		`"spec":{"owner":"me","boxes":0}`,
		`"spec":{"extra":{"x":1}}`,
	},
}

// metadataWrites are metadata for any kind, valid or not.
var metadataWrites = []string{
	`"labels":{"app":"web"}`,
	`"labels":{"app":"web","tier":"front"},"annotations":{"a":"1","b":"2"}`,
	`"annotations":{"a":"2"}`,
	`"finalizers":["example.com/hold"]`,
	`"managedFields":[]`,
	`"managedFields":[{}]`,
	`"managedFields":null`,
	`"managedFields":[{"manager":"old","operation":"Update","apiVersion":"shop.example.com/v1",` +
		`"fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{"f:app":{}}}}}]`,
	`"managedFields":[{"manager":"old","operation":"Replace","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]`,
	`"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"a","uid":"1"},{"apiVersion":"v1","kind":"A","name":"a","uid":"1"}]`,
	`"uid":"11111111-1111-1111-1111-111111111111"`,
	`"namespace":"elsewhere"`,
	`"generation":7,"creationTimestamp":"2001-01-01T00:00:00Z"`,
	`"labels":{"app":"not a label!"}`,
	`"unknown":true`,
	`"labels":{"a":1}`,
	`"annotations":{}`,
}

func oneOf(dice *rand.Rand, of []string) string { return of[dice.IntN(len(of))] }

// randomWrite returns a write of one of a few objects of a kind, which mostly may succeed.
func randomWrite(dice *rand.Rand, k kindWrites) writeRequest {
	name := oneOf(dice, []string{"a", "b", "c"})
	r := writeRequest{path: k.path + "/" + name, object: k.path + "/" + name}
	metadata := fmt.Sprintf(`"name":%q`, name)
	if dice.IntN(3) > 0 {
		metadata += "," + oneOf(dice, metadataWrites[:3+dice.IntN(len(metadataWrites)-2)])
	}
	whole := func(fields string) string {
		apiVersion, kind := k.apiVersion, k.kind
		switch dice.IntN(30) {
		case 0:
			kind = "Other"
		case 1:
			apiVersion = "other/v1"
		case 2:
			return `{"metadata":{` + metadata + `},` + fields + `}`
		case 3:
			return `{"apiVersion":"` + apiVersion + `",`
		case 4:
			return ""
		}
		return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{%s},%s}`, apiVersion, kind, metadata, fields)
	}
	var query []string
	if dice.IntN(3) == 0 {
		query = append(query, "fieldManager="+oneOf(dice, []string{"alice", "bob", "%07", strings.Repeat("x", 130), ""}))
	}
	if dice.IntN(3) == 0 {
		query = append(query, "fieldValidation="+oneOf(dice, []string{"Strict", "Warn", "Ignore", "Other"}))
	}
	if dice.IntN(15) == 0 {
		query = append(
			query,
			oneOf(dice, []string{"dryRun=All", "pretty=true", "other=1", "force=true", "fieldManager=a&fieldManager=b", "timeout=5s"}),
		)
	}
	r.accept = oneOf(dice, []string{"", "", "", "*/*", jsonType + ", */*"})
	switch dice.IntN(12) {
	case 0, 1, 2:
		r.method, r.path = http.MethodPost, k.path
		if dice.IntN(10) == 0 {
			metadata = strings.Replace(metadata, `"name":"`+name+`"`, `"generateName":"made-"`, 1)
		}
		r.body = whole(oneOf(dice, k.fields))
	case 3, 4:
		r.method = http.MethodPut
		if dice.IntN(8) > 0 {
			metadata += `,"resourceVersion":"VERSION"`
		} else if dice.IntN(4) == 0 {
			metadata += `,"resourceVersion":"1"`
		}
		if dice.IntN(20) == 0 {
			metadata = strings.Replace(metadata, name, "other", 1)
		}
		r.body = whole(oneOf(dice, k.fields))
	case 5, 6:
		r.method, r.headers = http.MethodPatch, []string{"Content-Type", "application/merge-patch+json"}
		r.body = oneOf(
			dice,
			append([]string{
				`{"metadata":{"labels":{"a":"b"}}}`,
				`{"metadata":{"annotations":{"a":null,"z":"1"}}}`,
				`{}`,
				`[]`,
				`nonsense`,
				`null`,
				`{"metadata":{"name":"other"}}`,
				`{"metadata":{"resourceVersion":"1"}}`,
				`{"metadata":{"managedFields":[{}]}}`,
				`{"metadata":{"finalizers":null}}`,
				`{"a":1,"a":2}`,
				`{"kind":"Other"}`,
			}, append(k.merges, k.merges...)...),
		)
	case 7:
		r.method, r.headers = http.MethodPatch, []string{"Content-Type", "application/json-patch+json"}
		all := append(
			[]string{
				`{"op":"add","path":"/metadata/labels","value":{"x":"y"}}`,
				`{"op":"remove","path":"/metadata/none"}`,
				`{"op":"bad"}`,
				`{"op":"replace","path":"/metadata/name","value":"other"}`,
				`{"op":"add","path":"/metadata/annotations/q","value":"1","more":1}`,
			},
			append(k.operations, k.operations...)...)
		r.body = "[" + oneOf(dice, all) + "," + oneOf(dice, all) + "]"
		if dice.IntN(10) == 0 {
			r.body = oneOf(dice, []string{"[]", "{}", "nonsense"})
		}
	case 8:
		r.method, r.headers = http.MethodPatch, []string{"Content-Type", "application/strategic-merge-patch+json"}
		r.body = oneOf(dice, k.merges)
	case 9, 10:
		r.method, r.headers = http.MethodPatch, []string{"Content-Type", "application/apply-patch+yaml"}
		query = slices.DeleteFunc(query, func(q string) bool { return strings.HasPrefix(q, "fieldManager") })
		query = append(query, "fieldManager="+oneOf(dice, []string{"alice", "bob", "carol"}))
		if dice.IntN(2) == 0 && !slices.Contains(query, "force=true") {
			query = append(query, oneOf(dice, []string{"force=true", "force=false", "force=x"}))
		}
		if dice.IntN(2) == 0 {
			metadata = fmt.Sprintf(`"name":%q,"labels":{"app":%q}`, name, oneOf(dice, []string{"web", "db"}))
		}
		r.body = whole(oneOf(dice, k.applied))
		if dice.IntN(10) == 0 {
			r.body = "apiVersion: " + k.apiVersion + "\nkind: " + k.kind + "\nmetadata:\n  name: " + name + "\n  labels: {yaml: \"yes\"}\n"
		}
	default:
		r.method = http.MethodDelete
		r.body = oneOf(
			dice,
			[]string{
				"",
				"",
				`{}`,
				`{"propagationPolicy":"Background"}`,
				`{"preconditions":{"uid":"other"}}`,
				`{"propagationPolicy":"Foreground"}`,
				`{"orphanDependents":false}`,
				`{"dryRun":["All"]}`,
				`nonsense`,
				`{"gracePeriodSeconds":0}`,
				`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":5}`,
				`{"kind":"DeleteOptions","apiVersion":"shop.example.com/v1"}`,
				`{"gracePeriodSeconds":-1}`,
				`{"gracePeriodSeconds":"1"}`,
				`{"propagationPolicy":"Orphan"}`,
				`{"propagationPolicy":"Other"}`,
				`{"orphanDependents":true}`,
				`{"orphanDependents":true,"propagationPolicy":"Background"}`,
				`{"preconditions":{}}`,
				`{"unknown":1}`,
				`{"propagationPolicy":"Background","propagationPolicy":"Orphan"}`,
				`{"dryRun":["Some"]}`,
				`null`,
				`[]`,
				` `,
			},
		)
		switch dice.IntN(4) {
		case 0, 1:
			query = nil
		case 2:
			query = []string{
				oneOf(
					dice,
					[]string{
						"propagationPolicy=Foreground",
						"propagationPolicy=Background",
						"propagationPolicy=Other",
						"gracePeriodSeconds=0",
						"gracePeriodSeconds=x",
						"dryRun=All",
						"dryRun=Some",
						"orphanDependents=false",
						"unknown=1",
					},
				),
			}
		}
	}
	switch dice.IntN(40) {
	case 0, 1, 2, 3, 4:
		if r.accept = oneOf(dice, forms); strings.HasPrefix(r.accept, protobufType+";as=") { // readable does not support these
			r.accept = ""
		}
	case 5:
		r.headers = append(
			r.headers,
			"Content-Type",
			oneOf(dice, []string{jsonType + "; charset=utf-8", "text/plain", "application/yaml", "application/json;", "", "application/cbor"}),
		)
	case 6, 7:
		r.headers = append(
			r.headers,
			"User-Agent",
			oneOf(dice, []string{"curl/8", "Mozilla/5.0", "other/1", "größe/1", strings.Repeat("é", 70)}),
		)
	case 8:
		r.path = oneOf(
			dice,
			[]string{
				k.path,
				r.object,
				r.object + "/",
				r.object + "/status",
				r.object + "/none",
				strings.Replace(r.path, "default", "elsewhere", 1),
				k.path + "/%61",
				k.path + "/.",
			},
		)
	case 9:
		// The response is compressed, if the client accepts that.
		r.headers = append(r.headers, "Accept-Encoding", oneOf(dice, []string{"gzip", "identity"}))
		r.body = strings.Replace(r.body, `"metadata":{`, fmt.Sprintf(`"metadata":{"annotations":{"long":%q},`, strings.Repeat("x", 132<<10)), 1)
	case 10:
		if dice.IntN(8) == 0 && strings.HasSuffix(r.body, "}") { // it is too large
			r.body = `{"a":"` + strings.Repeat("x", 3<<20) + `",` + r.body[1:]
		}
	case 11:
		if dice.IntN(4) == 0 {
			r.method, r.path, r.body, r.headers = http.MethodDelete, k.path, "", nil
			query = []string{oneOf(dice, []string{"labelSelector=app", "", "fieldSelector=metadata.name%3Da", "labelSelector=%3D"})}
		}
	case 12:
		r.method = oneOf(dice, []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "REPORT"})
	}
	r.collection = r.method == http.MethodDelete && r.path == k.path
	if len(query) > 0 {
		r.query = "?" + strings.Join(query, "&")
	}
	return r
}
