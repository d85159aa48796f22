package apitest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBadInput_isAnsweredWithStatus(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	before := c.create("w", spec(fields{"replicas": 1}))
	path := widgetsPath + "/w"
	for name, test := range map[string]struct {
		method, path, mediaType string
		body                    any
		code                    int
		reason                  metav1.StatusReason
		part                    string
	}{
		"half an object": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":`, 400,
			metav1.StatusReasonBadRequest, "unexpected end of JSON input"},
		"no object": {"POST", widgetsPath, jsonType, `[]`, 400, metav1.StatusReasonBadRequest, "the object provided is " +
			"unrecognized (must be of type Widget)"},
		"a string":             {"POST", widgetsPath, jsonType, `"widget"`, 400, metav1.StatusReasonBadRequest, ""},
		"nothing":              {"POST", widgetsPath, jsonType, ``, 400, metav1.StatusReasonBadRequest, "unexpected end of JSON input"},
		"an update of nothing": {"PUT", path, jsonType, ``, 400, metav1.StatusReasonBadRequest, "unexpected end of JSON input"},
		"a patch of nothing":   {"PATCH", path, mergePatch, ``, 400, metav1.StatusReasonBadRequest, ""},
		"bytes":                {"POST", widgetsPath, jsonType, []byte{0, 1, 2, 0xff}, 400, metav1.StatusReasonBadRequest, ""},
		"YAML that is none":    {"POST", widgetsPath, yamlType, "a:\n\t- b: [", 400, metav1.StatusReasonBadRequest, "yaml"},
		"a wrong type": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1",` +
			`"kind":"Widget","metadata":{"name":"new"},"spec":{"replicas":"one"}}`, 400, metav1.StatusReasonBadRequest, "cannot unmarshal " +
			"string into Go struct field WidgetSpec.spec.replicas of type int32"},
		"a number too large": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1",` +
			`"kind":"Widget","metadata":{"name":"new"},"spec":{"replicas":99999999999}}`, 400, metav1.StatusReasonBadRequest, "99999999999"},
		"a fraction": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1",` +
			`"kind":"Widget","metadata":{"name":"new"},"spec":{"replicas":1.5}}`, 400, metav1.StatusReasonBadRequest, "1.5"},
		"a group without a version": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1/x","kind":"Widget"}`, 400,
			metav1.StatusReasonBadRequest, "unexpected GroupVersion string"},
		"a list": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1","kind":"WidgetList","items":[]}`,
			400, metav1.StatusReasonBadRequest, "WidgetList"},
		"an unknown kind": {"POST", widgetsPath, jsonType, `{"apiVersion":"shop.example.com/v1","kind":"Gadget"}`, 400,
			metav1.StatusReasonBadRequest, "Gadget"},
		"a text": {"POST", widgetsPath, "text/plain", `{}`, 415, metav1.StatusReasonUnsupportedMediaType, "the body of " +
			"the request was in an unknown format - accepted media types include: application/json, application/yaml"},
		"protobuf": {"POST", widgetsPath, protobufType, "k8s\x00", 415, metav1.StatusReasonUnsupportedMediaType, "accepted media " +
			"types include"},
		"a form": {"PUT", path, "application/x-www-form-urlencoded", "a=b", 415, metav1.StatusReasonUnsupportedMediaType, ""},
		"no such resource": {"GET", "/apis/shop.example.com/v1/namespaces/default/gadgets", "", nil, 404, metav1.StatusReasonNotFound,
			"the server could not find the requested resource"},
		"no such subresource": {"GET", path + "/logs", "", nil, 404, metav1.StatusReasonNotFound, "the server could not find the " +
			"requested resource"},
		"no such version": {"GET", "/apis/shop.example.com/v7/namespaces/default/widgets", "", nil, 404, metav1.StatusReasonNotFound, ""},
		"no such verb": {"POST", path, jsonType, `{}`, 405, metav1.StatusReasonMethodNotAllowed, "the server does not " +
			"allow this method on the requested resource"},
		"no such method":               {"BREW", path, jsonType, `{}`, 405, metav1.StatusReasonMethodNotAllowed, ""},
		"a name with an escaped slash": {"GET", widgetsPath + "/a%2Fb", "", nil, 404, metav1.StatusReasonNotFound, ""},
		"a name of dots":               {"GET", widgetsPath + "/%2E%2E", "", nil, 0, "", ""},
		"a namespace in capitals": {"POST", "/apis/shop.example.com/v1/namespaces/Default/widgets", jsonType, widget("new"), 404,
			metav1.StatusReasonNotFound, `namespaces "Default" not found`},
		"a bad label selector": {"GET", widgetsPath + "?labelSelector=" + url.QueryEscape("a in (b"), "", nil, 400,
			metav1.StatusReasonBadRequest, "unable to parse requirement"},
		"a bad field selector": {"GET", widgetsPath + "?fieldSelector=" + url.QueryEscape("spec.size>1"), "", nil, 400,
			metav1.StatusReasonBadRequest, "invalid selector"},
		"a bad limit": {"GET", widgetsPath + "?limit=many", "", nil, 400, metav1.StatusReasonBadRequest, "many"},
		"a bad timeout": {"GET", widgetsPath + "?timeout=soon", "", nil, 400, metav1.StatusReasonBadRequest,
			"invalid timeout specified in the request URL"},
		"a bad option": {"POST", widgetsPath + "?dryRun=Maybe", jsonType, widget("new"), 422, metav1.StatusReasonInvalid,
			"dryRun"},
		"a bad grace period": {"DELETE", path + "?gracePeriodSeconds=long", "", nil, 400, metav1.StatusReasonBadRequest, "long"},
		"too deep": {"POST", widgetsPath, jsonType, strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000),
			400, metav1.StatusReasonBadRequest, "exceeded max depth"},
		"too deep for YAML": {"POST", widgetsPath, yamlType, strings.Repeat("[", 20000), 400, metav1.StatusReasonBadRequest, ""},
		"a bomb of YAML": {"POST", widgetsPath, yamlType, bomb(), 413, metav1.StatusReasonRequestEntityTooLarge,
			"after the expansion of its aliases"},
		"too many operations": {"PATCH", path, jsonPatch, "[" +
			strings.Repeat(`{"op":"test","path":"/kind","value":"Widget"},`, 10000) + `{"op":"test","path":"/kind","value":"Widget"}]`, 413,
			metav1.StatusReasonRequestEntityTooLarge, "The allowed maximum operations in a JSON patch is 10000, got 10001"},
		"a patch that copies without end": {"PATCH", path, jsonPatch, copies(), 422, metav1.StatusReasonInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := (&client{t, c.config, c.http}).do(test.method, test.path, test.body, "Content-Type", test.mediaType)
			if test.code == 0 {
				if a.code < 300 || a.code >= 500 {
					t.Errorf("got %d: %s", a.code, a.raw)
				}
				return
			}
			if test.reason == "" {
				a.want(test.code)
				return
			}
			a.refused(test.code, test.reason, test.part)
		})
	}
	if after := c.widget("w"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("something was changed: %+v", after)
	}
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[w]" {
		t.Errorf("something was left behind: %v", got)
	}
}

// bomb is a small YAML document that would become enormous.
func bomb() string {
	doc := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 10; i++ {
		doc += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return doc
}

// copies is a JSON patch that doubles an object again and again.
func copies() string {
	patch := `[{"op":"add","path":"/spec/options","value":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`
	for i := range 10 {
		patch += fmt.Sprintf(`,{"op":"copy","from":"/spec","path":"/metadata/c%d"}`, i)
	}
	return patch + "]"
}

func TestLargeBodies(t *testing.T) {
	t.Parallel()
	c := start(t, shop())
	before := c.create("w")
	path := widgetsPath + "/w"
	huge := func(bytes int) map[string]any {
		return spec(fields{"options": fields{"fill": strings.Repeat("x", bytes)}})
	}
	const most = "Request entity too large: limit is 3145728"
	large := c.post(widgetsPath, widget("large", huge(largest()))).want(201).widget()
	if got := c.widget("large"); len(got.Spec.Options["fill"]) != largest() || got.UID != large.UID {
		t.Errorf("%d bytes came back", len(got.Spec.Options["fill"]))
	}
	c.post(widgetsPath, widget("huge", huge(3<<20))).refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	c.post(widgetsPath, widget("huge", huge(4<<20))).refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	c.put(path, widget("w", huge(4<<20), metadata(fields{"resourceVersion": before.ResourceVersion}))).
		refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	for _, mediaType := range []string{mergePatch, strategicType, jsonPatch} {
		c.patch(mediaType, path, huge(4<<20)).refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	}
	c.apply(path, "m", widget("w", huge(4<<20))).refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	c.delete(path, bytes.Repeat([]byte(" "), 4<<20)).refused(413, metav1.StatusReasonRequestEntityTooLarge, most)
	// Of unknown length.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.config.Host+widgetsPath, &endless{left: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", jsonType)
	// The server may close the connection before all is sent.
	if response, err := c.http.Do(request); err == nil {
		response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body without end: %d", response.StatusCode)
		}
	}
	// Piece by piece an object cannot grow beyond the size that one write allows.
	c.patch(mergePatch, widgetsPath+"/large", `{"metadata":{"annotations":{"fill":"`+strings.Repeat("x", 300<<10)+`"}}}`).
		refused(422, metav1.StatusReasonInvalid, "metadata.annotations: Too long: may not be more than 262144 bytes")
	if got := c.get(widgetsPath).names(); fmt.Sprint(got) != "[large w]" || c.widget("w").ResourceVersion != before.ResourceVersion {
		t.Errorf("left behind: %v", got)
	}
	c.patch(mergePatch, path, `{"spec":{"replicas":1}}`).want(200)
}

// endless is a body of spaces.
type endless struct{ left int }

func (e *endless) Read(b []byte) (int, error) {
	if e.left <= 0 {
		return 0, fmt.Errorf("the whole body was taken")
	}
	for i := range b {
		b[i] = ' '
	}
	e.left -= len(b)
	return len(b), nil
}
