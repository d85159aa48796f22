package upstream

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestRefuseCostlyPatches_shape(t *testing.T) {
	t.Parallel()
	const merge, strategic, operations, apply = "application/merge-patch+json", "application/strategic-merge-patch+json",
		"application/json-patch+json", "application/apply-patch+yaml"
	objects := func(levels int) string { return strings.Repeat(`{"a":`, levels) + "null" + strings.Repeat("}", levels) }
	lists := func(levels int) string {
		return `{"a":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + "}"
	}
	many := func(one string, times int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(one+",", times), ",") + "]"
	}
	for name, test := range map[string]struct {
		method, media, body string
		code                int // 0 if the patch passes
	}{
		"objects as deep as may be":     {http.MethodPatch, merge, objects(deepestMerge), 0},
		"objects that are deeper":       {http.MethodPatch, merge, objects(deepestMerge + 1), 400},
		"lists as deep as may be":       {http.MethodPatch, merge, lists(deepestMerge), 0},
		"lists that are deeper":         {http.MethodPatch, merge, lists(deepestMerge + 1), 400},
		"deep, with a parameter":        {http.MethodPatch, merge + "; charset=utf-8", objects(deepestMerge + 1), 400},
		"the deepest that is decoded":   {http.MethodPatch, merge, objects(10_000), 400},
		"side by side":                  {http.MethodPatch, merge, `{"a":` + many("{}", 20_000) + "}", 0},
		"brackets in a string":          {http.MethodPatch, merge, `{"a":"\"` + strings.Repeat("[", 1000) + `"}`, 0},
		"a string without an end":       {http.MethodPatch, merge, `{"a":"` + strings.Repeat("[", 1000) + `\`, 0},
		"deep, to be applied":           {http.MethodPatch, apply, objects(deepestMerge + 1), 0},
		"a request that is no patch":    {http.MethodPut, merge, objects(deepestMerge + 1), 0},
		"as many objects as are merged": {http.MethodPatch, strategic, `{"a":` + many("{}", mostMerged-1) + "}", 0},
		"more objects than are merged":  {http.MethodPatch, strategic, `{"a":` + many("{}", mostMerged) + "}", 413},
		"as many moves in lists as may be": {http.MethodPatch, operations,
			many(`{"op":"move","from":"/a/5","path":"/a/0"}`, mostListOperations), 0},
		"more moves in lists": {http.MethodPatch, operations,
			many(`{"op":"move","from":"/a/5","path":"/a/0"}`, mostListOperations+1), 413},
		"more moves out of lists": {http.MethodPatch, operations,
			many(`{"op":"move","from":"/a/5","path":"/b"}`, mostListOperations+1), 413},
		"more inserts, with an escape": {http.MethodPatch, operations,
			many(`{"\u006fp":"\u0061dd","path":"/a/\u0030","value":1}`, mostListOperations+1), 413},
		"more removals, with another number": {http.MethodPatch, operations, many(`{"op":"remove","path":"/a/-1"}`, mostListOperations+1),
			413},
		"more operations, on members of objects": {http.MethodPatch, operations, many(`{"op":"add","path":"/a/b","value":1}`, 9_999), 0},
		"more operations, that append":           {http.MethodPatch, operations, many(`{"op":"add","path":"/a/-","value":1}`, 9_999), 0},
		"more operations, that test":             {http.MethodPatch, operations, many(`{"op":"test","path":"/a/0","value":1}`, 9_999), 0},
		"operations that are none":               {http.MethodPatch, operations, many(`{"op":1}`, 9_999), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(test.method, "/", nil)
			r.Header.Set("Content-Type", test.media)
			r.Body = &bufferedBody{*bytes.NewReader([]byte(test.body)), http.NoBody, []byte(test.body)}
			_, err := refuseCostlyPatches(r, &request.RequestInfo{IsResourceRequest: true})
			code := 0
			if status := apierrors.APIStatus(nil); errors.As(err, &status) {
				code = int(status.Status().Code)
			}
			if code != test.code {
				t.Errorf("%v", err)
			}
		})
	}
}
