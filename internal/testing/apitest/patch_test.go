package apitest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPatch(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	for _, test := range []struct {
		name, mediaType, version, patch, want string
	}{
		{"merge replaces lists", mergePatch, "v1", `{"spec":{"parts":[{"name":"top","count":1}]}}`, "map[a:1 b:2] [{top 1}]"},
		{"merge removes by null", mergePatch, "v1", `{"spec":{"options":{"a":null,"c":"3"}}}`, "map[b:2 c:3] [{leg 4} {lid 1}]"},
		{"strategic merges lists by their key", strategicType, "v1", `{"spec":{"parts":[{"name":"leg","count":3},{"name":"top"}]}}`,
			"map[a:1 b:2] [{leg 3} {top 0} {lid 1}]"},
		{"strategic deletes by directive", strategicType, "v1", `{"spec":{"parts":[{"name":"leg",` +
			`"$patch":"delete"}],"options":{"$retainKeys":["b"]}}}`, "map[b:2] [{lid 1}]"},
		{"strategic replaces by directive", strategicType, "v1", `{"spec":{"parts":[{"$patch":"replace"},{"name":"knob"}]}}`,
			"map[a:1 b:2] [{knob 0}]"},
		{"strategic orders by directive", strategicType, "v1", `{"spec":{"$setElementOrder/parts":[{"name":"lid"},` +
			`{"name":"leg"}],"parts":[{"name":"lid","count":2}]}}`, "map[a:1 b:2] [{lid 2} {leg 4}]"},
		{"json operations", jsonPatch, "v1", `[{"op":"test","path":"/spec/options/a",` +
			`"value":"1"},{"op":"add","path":"/spec/parts/-","value":{"name":"top"}},{"op":"remove",` +
			`"path":"/spec/options/b"},{"op":"replace","path":"/spec/parts/0/count","value":5},` +
			`{"op":"copy","from":"/spec/options/a","path":"/spec/options/c"}]`, "map[a:1 c:1] [{leg 5} {lid 1} {top 0}]"},
		{"merge in the other version", mergePatch, "v1beta1", `{"spec":{"parts":["top=7"]}}`, "map[a:1 b:2] [{top 7}]"},
		{"json in the other version", jsonPatch, "v1beta1", `[{"op":"replace","path":"/spec/parts/0","value":"top=7"}]`, "map[a:1 b:2] [{top " +
			"7} {lid 1}]"},
		{"strategic in the other version", strategicType, "v1beta1", `{"spec":{"options":{"c":"3"}}}`, "map[a:1 b:2 c:3] [{leg 4} {lid 1}]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &client{t, c.config, c.http}
			c.create(
				"w",
				spec(fields{"options": fields{"a": "1", "b": "2"}, "parts": []fields{{"name": "leg", "count": 4}, {"name": "lid", "count": 1}}}),
			)
			defer func() { c.delete(widgetsPath+"/w", nil).want(200) }()
			got := c.patch(test.mediaType, "/apis/shop.example.com/"+test.version+"/namespaces/default/widgets/w", test.patch).want(200)
			if version := got.str("apiVersion"); version != "shop.example.com/"+test.version {
				t.Errorf("answered in %s", version)
			}
			w := c.widget("w")
			if got := fmt.Sprint(w.Spec.Options, " ", w.Spec.Parts); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if w.Generation != 2 {
				t.Errorf("generation %d", w.Generation)
			}
		})
	}
}

func TestPatch_rejections(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w", spec(fields{"replicas": 1}))
	path := widgetsPath + "/w"
	for name, test := range map[string]struct {
		mediaType, path, patch string
		code                   int
		reason                 metav1.StatusReason
		part                   string
	}{
		"a stale resource version": {mergePatch, path, `{"metadata":{"resourceVersion":"1"},"spec":{"replicas":2}}`, 409,
			metav1.StatusReasonConflict, "the object has been modified"},
		"another uid":               {mergePatch, path, `{"metadata":{"uid":"another"}}`, 422, metav1.StatusReasonInvalid, "metadata.uid"},
		"a missing object":          {mergePatch, widgetsPath + "/missing", `{}`, 404, metav1.StatusReasonNotFound, "not found"},
		"a missing object, by JSON": {jsonPatch, widgetsPath + "/missing", `[]`, 404, metav1.StatusReasonNotFound, "not found"},
		"a failed test": {jsonPatch, path, `[{"op":"test","path":"/spec/size",` +
			`"value":"large"},{"op":"remove","path":"/spec/replicas"}]`, 422, metav1.StatusReasonInvalid, "the server rejected our request due " +
			"to an error in our request"},
		"a path that is not there": {jsonPatch, path, `[{"op":"remove","path":"/spec/options/x"}]`, 422, metav1.StatusReasonInvalid,
			"the server rejected our request due to an error in our request"},
		"an unknown operation": {jsonPatch, path, `[{"op":"explode","path":"/spec"}]`, 422, metav1.StatusReasonInvalid,
			"the server rejected our request due to an error in our request"},
		"a JSON patch that is none":      {jsonPatch, path, `{"spec":{}}`, 400, metav1.StatusReasonBadRequest, "cannot unmarshal object"},
		"a merge patch that is none":     {mergePatch, path, `[`, 400, metav1.StatusReasonBadRequest, ""},
		"a strategic patch that is none": {strategicType, path, `{"spec":`, 400, metav1.StatusReasonBadRequest, ""},
		"a wrong type":                   {mergePatch, path, `{"spec":{"replicas":"many"}}`, 422, metav1.StatusReasonInvalid, "replicas"},
		"an unknown directive":           {strategicType, path, `{"spec":{"$patch":"explode"}}`, 500, "", "unknown patch type: explode"},
		"an invalid result":              {mergePatch, path, `{"spec":{"size":"huge"}}`, 422, metav1.StatusReasonInvalid, "spec.size"},
		"another name": {mergePatch, path, `{"metadata":{"name":"other"}}`, 400, metav1.StatusReasonBadRequest,
			"the name of the object (other) does not match the name on the URL (w)"},
		"another namespace": {mergePatch, path, `{"metadata":{"namespace":"other"}}`, 400, metav1.StatusReasonBadRequest,
			"namespace"},
		"a deep merge patch": {mergePatch, path, strings.Repeat(`{"a":`, 9_000) + "null" + strings.Repeat("}", 9_000), 400,
			metav1.StatusReasonBadRequest, "nested objects and lists"},
		"a deep merge patch, dry": {mergePatch, path + "?dryRun=All", strings.Repeat(`{"a":`, 9_000) + "null" +
			strings.Repeat("}", 9_000), 400, metav1.StatusReasonBadRequest, "nested objects and lists"},
		"many moves in a list": {jsonPatch, path, "[" +
			strings.Repeat(`{"op":"move","from":"/spec/a/1","path":"/spec/a/0"},`, 1000) +
			`{"op":"move","from":"/spec/a/1","path":"/spec/a/0"}]`, 413, metav1.StatusReasonRequestEntityTooLarge,
			"on elements of lists is 1000, got 1001"},
		"many objects to be merged": {strategicType, path, `{"metadata":{"ownerReferences":[` + strings.Repeat("{},", 10_000) + `{}]}}`,
			413, metav1.StatusReasonRequestEntityTooLarge, "is 10000, got 10003"},
		"another kind":           {mergePatch, path, `{"kind":"Shelf"}`, 422, metav1.StatusReasonInvalid, "Shelf"},
		"JSON as the media type": {jsonType, path, `{}`, 415, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type"},
		"no such media type":     {"text/plain", path, `{}`, 415, metav1.StatusReasonUnsupportedMediaType, ""},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, c.config, c.http}).patch(test.mediaType, test.path, test.patch).refused(test.code, test.reason, test.part)
		})
	}
	if now := c.widget("w"); now.ResourceVersion != w.ResourceVersion {
		t.Errorf("a refused patch left something behind: %+v", now)
	}
}

func TestPatch_resourceVersion(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	w := c.create("w")
	got := c.patch(mergePatch, widgetsPath+"/w", fields{"metadata": fields{"resourceVersion": w.ResourceVersion, "uid": w.UID},
		"spec": fields{"replicas": 2}}).
		want(http.StatusOK).
		widget()
	if *got.Spec.Replicas != 2 {
		t.Errorf("got %+v", got.Spec)
	}
}

func TestPatch_concurrent_allApply(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	c.create("w")
	const writers, each = 8, 5
	errs := make(chan error)
	for i := range writers {
		go func() {
			for j := range each {
				a := c.patch(mergePatch, widgetsPath+"/w", fmt.Sprintf(`{"spec":{"options":{"w%d-%d":"x"}}}`, i, j))
				if a.code != http.StatusOK {
					errs <- fmt.Errorf("got %d: %s", a.code, a.raw)
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	w := c.widget("w")
	if len(w.Spec.Options) != writers*each || w.Generation != 1+writers*each {
		t.Errorf("%d options, generation %d; want %d and %d", len(w.Spec.Options), w.Generation, writers*each, 1+writers*each)
	}
}
