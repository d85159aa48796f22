package apitest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	markedv1beta1 "github.com/annexapi/annex/internal/testing/shop/marked/v1beta1"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

const (
	stacksPath     = "/apis/marked.shop.example.com/v1/namespaces/default/stacks"
	stacksBetaPath = "/apis/marked.shop.example.com/v1beta1/namespaces/default/stacks"
)

func stacks() *annex.KindBuilder[markedv1.Stack] {
	return annex.KindOf[markedv1.Stack, markedv1.StackList]("stacks", markedv1.API).
		Versions(annex.Version(markedv1beta1.API, markedv1beta1.StackToHub, markedv1beta1.StackFromHub))
}

func stackServer(k annex.Kind) annex.Server {
	return annex.Server{Name: "marked", Groups: []annex.Group{{Name: "marked.shop.example.com", Kinds: []annex.Kind{k}}}}
}

func stack(name string, f fields) map[string]any {
	return object("v1", "Stack", name, spec(f), fields{"apiVersion": "marked.shop.example.com/v1"})
}

// plainSpec returns the spec of an object as its JSON decodes.
func plainSpec(t *testing.T, obj map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(obj["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// zeroSpecs returns documents with absent and zero fields.
func zeroSpecs() map[string]fields {
	return map[string]fields{
		"nothing":    {},
		"zeros":      {"copies": 0, "sealed": false, "note": "", "tags": []string{}},
		"one zero":   {"copies": 0},
		"null":       {"copies": nil, "note": nil},
		"others":     {"copies": 7, "sealed": true, "note": "x", "tags": []string{"c"}},
		"in a list":  {"layers": []fields{{"name": "a", "height": 0}, {"name": "b"}, {"name": "c", "height": 5}}},
		"in a map":   {"rooms": fields{"a": fields{"doors": 0}, "b": fields{}, "c\"d": fields{"doors": 0}}},
		"behind one": {"roof": fields{"doors": 0}},
		"empty":      {"roof": fields{}},
		"in a part":  {"base": fields{"depth": 0, "material": "sand"}},
		"a part":     {"base": fields{"material": "sand"}},
		"all": {
			"copies": 0,
			"layers": []fields{{"name": "a", "height": 0}},
			"rooms":  fields{"a": fields{"doors": 0}},
			"roof":   fields{"doors": 0},
		},
	}
}

// defaulted returns the spec that a server of CustomResourceDefinitions stores for a document.
func (r reference) defaulted(doc map[string]any) map[string]any {
	r.t.Helper()
	return plainSpec(r.t, r.complete(doc).Object)
}

func TestExplicitZeros_likeCRDs(t *testing.T) {
	t.Parallel()
	server := newReference(t, markedv1.API().CustomResources()["Stack"])
	for name, options := range map[string]annex.Options{
		"memory":   {Storage: memory.Storage()},
		"embedded": {Storage: embedded.Dir("")},
		"files":    {Storage: files.Dir("")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options.DataDir = t.TempDir()
			want := map[string]map[string]any{}
			t.Run("write", func(t *testing.T) {
				c := connect(t, annextest.StartWith(t, stackServer(stacks()), options))
				for i, name := range slices.Sorted(maps.Keys(zeroSpecs())) {
					written := fmt.Sprintf("created-%d", i)
					doc := stack(written, zeroSpecs()[name])
					want[written] = server.defaulted(doc)
					check := func(how string, a *answer) {
						t.Helper()
						if got := plainSpec(t, a.object()); !reflect.DeepEqual(got, want[written]) {
							t.Errorf("%s: %s answers\n%v\nwant\n%v", name, how, got, want[written])
						}
					}
					check("create", c.post(stacksPath, doc).want(201))
					check("get", c.get(stacksPath+"/"+written))
					doc["metadata"].(map[string]any)["resourceVersion"] = c.get(stacksPath+"/"+written).str("metadata", "resourceVersion")
					check("put", c.put(stacksPath+"/"+written, doc).want(200))
					check(
						"an unrelated patch",
						c.patch(mergePatch, stacksPath+"/"+written, fields{"metadata": fields{"labels": fields{"a": "b"}}}).want(200),
					)
					check(
						"an unrelated JSON patch",
						c.patch(jsonPatch, stacksPath+"/"+written, []fields{{"op": "add", "path": "/metadata/labels/c", "value": "d"}}).want(200),
					)
					check(
						"an unrelated strategic patch",
						c.patch(strategicType, stacksPath+"/"+written, fields{"metadata": fields{"labels": fields{"e": "f"}}}).want(200),
					)
					check("an unrelated apply", c.apply(stacksPath+"/"+written, "other", stack(written, fields{"weight": 0})).want(200))
					check("a status", c.patch(mergePatch, stacksPath+"/"+written+"/status", fields{"status": fields{"copies": 3}}).want(200))
					check("pretty", c.get(stacksPath+"/"+written+"?pretty=true"))

					applied := fmt.Sprintf("applied-%d", i)
					if _, null := zeroSpecs()[name]["copies"]; null && name == "null" {
						continue // to apply null means something else
					}
					doc = stack(applied, zeroSpecs()[name])
					want[applied] = server.defaulted(doc)
					written = applied
					check("apply", c.apply(stacksPath+"/"+applied, "me", doc).want(201))
					check("apply again", c.apply(stacksPath+"/"+applied, "me", doc).want(200))
				}
			})
			t.Run("read by another process", func(t *testing.T) {
				if storageName(options) == memory.Name {
					t.Skip("it keeps nothing")
				}
				c := connect(t, annextest.StartWith(t, stackServer(stacks()), options))
				items := c.get(stacksPath).object()["items"].([]any)
				if len(items) != len(want) {
					t.Errorf("%d objects, want %d", len(items), len(want))
				}
				for _, item := range items {
					name := text(item.(map[string]any), "metadata", "name")
					if got := plainSpec(t, item.(map[string]any)); !reflect.DeepEqual(got, want[name]) {
						t.Errorf("%s: listed\n%v\nwant\n%v", name, got, want[name])
					}
				}
			})
		})
	}
}

func TestExplicitZeros_patches_likeCRDs(t *testing.T) {
	t.Parallel()
	c := start(t, stackServer(stacks()))
	server := newReference(t, markedv1.API().CustomResources()["Stack"])
	patches := map[string]fields{
		"to zero":      {"copies": 0, "note": ""},
		"from zero":    {"copies": 5},
		"removal":      {"copies": nil, "sealed": nil},
		"of a list":    {"layers": []fields{{"name": "z", "height": 0}, {"name": "y"}}},
		"of a map":     {"rooms": fields{"a": fields{"doors": nil}, "b": fields{"doors": 0}}},
		"into nothing": {"roof": fields{"doors": 0}},
		"to nothing":   {"roof": nil, "layers": nil},
	}
	n := 0
	for before, doc := range zeroSpecs() {
		for name, patch := range patches {
			n++
			of := stack(fmt.Sprintf("p%d", n), doc)
			c.post(stacksPath, of).want(201)
			old, err := json.Marshal(server.complete(of).Object)
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(fields{"spec": patch})
			if err != nil {
				t.Fatal(err)
			}
			merged, err := jsonpatch.MergePatch(old, body)
			if err != nil {
				t.Fatal(err)
			}
			var after map[string]any
			if err := json.Unmarshal(merged, &after); err != nil {
				t.Fatal(err)
			}
			want := server.defaulted(after)
			path := stacksPath + "/" + text(of, "metadata", "name")
			if got := plainSpec(t, c.patch(mergePatch, path, body).want(200).object()); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s:\n%v\nwant\n%v", before, name, got, want)
			}
			if got := plainSpec(t, c.get(path).object()); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s, read:\n%v\nwant\n%v", before, name, got, want)
			}
		}
	}
}

func TestExplicitZeros_managedFields(t *testing.T) {
	t.Parallel()
	c := start(t, stackServer(stacks()))
	path := stacksPath + "/a"
	c.apply(path, "one", stack("a", fields{"copies": 5})).want(201)
	c.patch(mergePatch, path+"?fieldManager=scaler", spec(fields{"copies": 0})).want(200)
	s := c.apply(path, "one", stack("a", fields{"copies": 5})).refused(409, metav1.StatusReasonConflict)
	if !strings.Contains(s.Message, `conflict with "scaler"`) || !strings.Contains(s.Message, ".spec.copies") {
		t.Errorf("got %q", s.Message)
	}
	c.apply(path, "one", stack("a", fields{"copies": 5}), "force=true").want(200)
	c.apply(path, "two", stack("a", fields{"note": ""})).want(200)
	c.apply(path, "one", stack("a", fields{})).want(200)
	if got := plainSpec(t, c.get(path).object()); got["copies"] != 1.0 || got["note"] != "" {
		t.Errorf("what no applier has any more has its default, what one has as empty is empty: %v", got)
	}
	c.apply(path, "two", stack("a", fields{})).want(200)
	if got := plainSpec(t, c.get(path).object()); got["note"] != "fragile" {
		t.Errorf("a zero that is removed becomes the default: %v", got)
	}
	c.patch(mergePatch, path+"/scale", fields{"spec": fields{"replicas": 0}}).want(200)
	if got := plainSpec(t, c.get(path).object()); got["copies"] != 0.0 {
		t.Errorf("scaled to 0: %v", got)
	}
}

func TestExplicitZeros_watchesTablesAndYAML(t *testing.T) {
	t.Parallel()
	c := start(t, stackServer(stacks()))
	w := c.watch(stacksPath + "?watch=1")
	c.post(stacksPath, "apiVersion: marked.shop.example.com/v1\nkind: Stack\nmetadata: {name: a}\nspec: {copies: 0}\n", "Content-Type",
		yamlType).
		want(201)
	if event := w.next(); plainSpec(t, event.Object)["copies"] != 0.0 {
		t.Errorf("watched: %v", event.Object)
	}
	table := c.get(stacksPath+"?includeObject=Object", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").object()
	row := table["rows"].([]any)[0].(map[string]any)["object"].(map[string]any)
	if plainSpec(t, row)["copies"] != 0.0 {
		t.Errorf("in a table: %v", row)
	}
	var document map[string]any
	if err := yaml.Unmarshal(c.get(stacksPath+"/a", "Accept", yamlType).want(200).raw, &document); err != nil {
		t.Fatal(err)
	}
	if got := plainSpec(t, document); got["copies"] != 0.0 || got["note"] != "fragile" {
		t.Errorf("as YAML: %v", got)
	}
}

func TestDefaults_ofStatus_onCreate(t *testing.T) {
	t.Parallel()
	c := start(t, stackServer(stacks()))
	doc := stack("a", fields{})
	doc["status"] = fields{"phase": "Sent", "copies": 4}
	created := c.post(stacksPath, doc).want(201)
	read := c.get(stacksPath + "/a")
	for _, a := range []*answer{created, read} {
		if status := fmt.Sprint(a.object()["status"]); status != "map[phase:Waiting]" {
			t.Errorf("%s: status %s", a.asked, status)
		}
	}
	c.patch(mergePatch, stacksPath+"/a/status", fields{"status": fields{"phase": ""}}).want(200)
	if status := fmt.Sprint(c.get(stacksPath + "/a").object()["status"]); status != "map[phase:]" {
		t.Errorf("status %s", status)
	}
}

func TestExplicitZeros_versions(t *testing.T) {
	t.Parallel()
	beta := func(name string, f fields) map[string]any {
		return object("v1beta1", "Stack", name, spec(f), fields{"apiVersion": "marked.shop.example.com/v1beta1"})
	}
	c := start(t, stackServer(stacks()))
	// Both versions have a default for copies, so a value sent in one holds in the other. Only the hub has a default
	// for sealed and for the note, and fields that v1beta1 leaves empty get it.
	for name, test := range map[string]struct {
		sent         fields
		beta, stable string
	}{
		"nothing": {fields{}, "map[copies:1 sealed:true]", "map[copies:1 note:fragile sealed:true tags:[a b]]"},
		"zero":    {fields{"copies": 0}, "map[copies:0 sealed:true]", "map[copies:0 note:fragile sealed:true tags:[a b]]"},
	} {
		for _, how := range []string{"created", "applied"} {
			written := name + "-" + how
			if how == "created" {
				c.post(stacksBetaPath, beta(written, test.sent)).want(201)
			} else {
				c.apply(stacksBetaPath+"/"+written, "me", beta(written, test.sent)).want(201)
			}
			c.patch(mergePatch, stacksBetaPath+"/"+written, fields{"metadata": fields{"labels": fields{"a": "b"}}}).want(200)
			if got := fmt.Sprint(plainSpec(t, c.get(stacksBetaPath+"/"+written).object())); got != test.beta {
				t.Errorf("%s in v1beta1: %s", written, got)
			}
			if got := fmt.Sprint(plainSpec(t, c.get(stacksPath+"/"+written).object())); got != test.stable {
				t.Errorf("%s in v1: %s", written, got)
			}
		}
	}
}
