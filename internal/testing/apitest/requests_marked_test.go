package apitest_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	rulesv1 "github.com/annexapi/annex/internal/testing/shop/rules/v1"
	"github.com/annexapi/annex/operation"
)

// startMessages serves crates and tickets whose subresources return their requests.
func startMessages(t *testing.T) *client {
	t.Helper()
	peek := func(o *markedv1.PeekOptions) *markedv1.Packing {
		return &markedv1.Packing{Layers: o.Depth, Packer: o.From, Tags: o.Only}
	}
	crates := markedCrates().Subresources(
		annex.Action("packing", func(_ context.Context, r *annex.ActionRequest[markedv1.Crate, markedv1.Packing]) (*markedv1.Packing, error) {
			return r.Object, nil
		}),
		annex.Action("label", func(_ context.Context, r *annex.ActionRequest[markedv1.Crate, markedv1.Relabelling]) (*markedv1.Relabelling,
			error) {
			return r.Object, nil
		}).
			On(annex.Create, annex.Update),
		annex.View("glimpse", func(_ context.Context, r *annex.ViewRequest[markedv1.Crate, markedv1.PeekOptions]) (*markedv1.Packing, error) {
			return peek(r.Options), nil
		}),
		annex.Connect("peek", func(_ context.Context, r *annex.ConnectRequest[markedv1.Crate, markedv1.PeekOptions]) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(peek(r.Options)) }), nil
		}).LongRunning(func(o *markedv1.PeekOptions) bool { return o.Depth > 8 }),
		operation.Action("repacking", func(_ context.Context, r *operation.Run[markedv1.Crate, markedv1.Packing]) (*markedv1.Packing, error) {
			return r.Object, nil
		}),
	)
	tickets := tickets().Subresources(
		annex.Action("escalation", func(_ context.Context, r *annex.ActionRequest[rulesv1.Ticket, rulesv1.Escalation]) (*rulesv1.Escalation,
			error) {
			return r.Object, nil
		}),
		annex.View("history", func(_ context.Context, r *annex.ViewRequest[rulesv1.Ticket, rulesv1.HistoryOptions]) (*rulesv1.Ticket, error) {
			return r.Parent, nil
		}),
		annex.Connect("live", func(_ context.Context, r *annex.ConnectRequest[rulesv1.Ticket, rulesv1.HistoryOptions]) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }), nil
		}),
	)
	c := start(t, annex.Server{Name: "messages", Groups: []annex.Group{
		{Name: "marked.shop.example.com", Kinds: []annex.Kind{crates, operation.Kind(markedv1.API, operation.Options{})}},
		{Name: "rules.example.com", Kinds: []annex.Kind{tickets}},
	}})
	c.post(markedPath, markedCrate("c", fields{"owner": "me"})).want(201)
	c.post(ticketsPath, ticket("t", spec(fields{"title": "t"}))).want(201)
	return c
}

func TestRequestsOfActions_kubebuilderMarkers(t *testing.T) {
	t.Parallel()
	c := startMessages(t)
	good := c.post(markedPath+"/c/packing", fields{"packer": "ann", "layers": 1, "until": 1, "goods": []fields{{"name": "a", "kind": "x"}}}).
		want(201)
	var sent markedv1.Packing
	decode(t, good.raw, &sent)
	if sent.Layers != 1 || sent.Handling.Handling != "soft" || sent.Goods[0].Count != 1 {
		t.Errorf("got %+v, want 1 layer, soft, a count of 1", sent)
	}
	if got := c.post(markedPath+"/c/packing", fields{"packer": "ann"}).want(201).str("layers"); got != "2" {
		t.Errorf("layers by default: got %q, want 2", got)
	}
	for name, test := range map[string]struct {
		request fields
		want    []string
	}{
		"minimum":       {fields{"layers": -5}, []string{"layers: Invalid value: -5: layers in body should be greater than or equal to 1"}},
		"explicit zero": {fields{"layers": 0}, []string{"layers: Invalid value: 0: layers in body should be greater than or equal to 1"}},
		"required":      {fields{"packer": nil}, []string{"packer: Required value"}},
		"pattern":       {fields{"packer": "Ann"}, []string{`packer: Invalid value: "Ann": packer in body should match '^[a-z]+$'`}},
		"maxLength":     {fields{"packer": "annannann"}, []string{"packer: Too long: may not be more than 8 bytes"}},
		"embedded":      {fields{"handling": "wild"}, []string{`handling: Unsupported value: "wild": supported values: "soft", "rough"`}},
		"rule in CEL":   {fields{"layers": 5, "until": 4}, []string{"until: Invalid value: until is before layers"}},
		"element": {fields{"goods": []fields{{"name": "a", "kind": ""}}}, []string{"goods[0].kind: Invalid value: \"\": " +
			"goods[0].kind in body should be at least 1 chars long"}},
		"duplicate in map": {fields{"goods": []fields{{"name": "a", "kind": "x"}, {"name": "a", "kind": "x"}}},
			[]string{`goods[1]: Duplicate value: {"name":"a"}`}},
		"duplicate in set": {fields{"tags": []string{"a", "a"}}, []string{`tags[1]: Duplicate value: "a"`}},
		"other type": {fields{"layers": "many"}, []string{`layers: Invalid value: "string": layers in body must be of type integer: ` +
			`"string"`}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := test.request["packer"]; !ok {
				test.request["packer"] = "ann"
			}
			for _, path := range []string{markedPath + "/c/packing", markedBetaPath + "/c/packing", markedPath + "/c/repacking"} {
				refusal := c.post(path, test.request).refused(422, metav1.StatusReasonInvalid)
				// Some causes are followed by the remark that rules in CEL were not run.
				got := slices.DeleteFunc(
					causes(refusal),
					func(cause string) bool { return strings.Contains(cause, "some validation rules were not checked") },
				)
				if !slices.Equal(got, test.want) {
					t.Errorf("%s: got %q, want %q", path, got, test.want)
				}
			}
		})
	}
	if got := c.post(markedPath+"/c/repacking?wait=30s", fields{"packer": "ann"}).want(201).str("status", "result", "layers"); got != "2" {
		t.Errorf("layers of a long action by default: got %q, want 2", got)
	}
	// A request with metadata is validated like others, by PUT too.
	for _, send := range []func(string, any, ...string) *answer{c.post, c.put} {
		send(markedPath+"/c/label", object("v1", "Relabelling", "c", fields{"apiVersion": "marked.shop.example.com/v1", "label": "l"})).
			refused(422, metav1.StatusReasonInvalid, "label: Invalid value: \"l\": label in body should be at least 2 chars long")
		if got := send(
			markedPath+"/c/label",
			object("v1", "Relabelling", "c", fields{"apiVersion": "marked.shop.example.com/v1", "label": "ll"}),
		).str("label"); got != "ll" {
			t.Errorf("got label %q, want ll", got)
		}
	}
}

func TestOptions_kubebuilderMarkers(t *testing.T) {
	t.Parallel()
	c := startMessages(t)
	for _, sub := range []string{"glimpse", "peek"} {
		for query, want := range map[string]string{"": "4", "?depth=9&from=top&only=a&only=b": "9", "?from=side": "4"} {
			if got := c.get(markedPath + "/c/" + sub + query).want(200).str("layers"); got != want {
				t.Errorf("%s%s: depth is %q, want %q", sub, query, got, want)
			}
		}
		for query, want := range map[string]string{
			"?depth=10":             "depth: Invalid value: 10: depth in body should be less than or equal to 9",
			"?depth=0":              "depth: Invalid value: 0: depth in body should be greater than or equal to 1",
			"?from=below":           `from: Unsupported value: "below": supported values: "top", "side"`,
			"?only=a&only=b&only=c": "only: Too many: 3: must have at most 2 items",
			"?from=":                `from: Unsupported value: "": supported values: "top", "side"`,
		} {
			c.get(markedPath+"/c/"+sub+query).refused(422, metav1.StatusReasonInvalid, want)
		}
	}
}

func TestMessages_declarativeTags(t *testing.T) {
	t.Parallel()
	c := startMessages(t)
	c.post(ticketsPath+"/t/escalation", fields{"to": "ann", "levels": 1, "note": "short"}).want(201)
	for name, test := range map[string]struct {
		request fields
		want    string
	}{
		"required":                {fields{}, "to: Required value"},
		"maxLength":               {fields{"to": "annannann"}, "to: Too long: may not be more than 8 characters"},
		"minimum":                 {fields{"to": "ann", "levels": 0}, "levels: Invalid value: 0: must be greater than or equal to 1"},
		"an option declared":      {fields{"to": "ann", "note": "too long"}, "note: Too long: may not be more than 5 characters"},
		"an option only in a tag": {fields{"to": "ann", "pager": "1"}, "pager: Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			c.post(ticketsPath+"/t/escalation", test.request).refused(422, metav1.StatusReasonInvalid, test.want)
		})
	}
	for _, sub := range []string{"history", "live"} {
		c.get(ticketsPath + "/t/" + sub + "?limit=100").want(200)
		c.get(ticketsPath + "/t/" + sub).want(200)
		c.get(ticketsPath+"/t/"+sub+"?limit=101").
			refused(422, metav1.StatusReasonInvalid, "limit: Invalid value: 101: must be less than or equal to 100")
		c.get(ticketsPath+"/t/"+sub+"?pager=1").refused(422, metav1.StatusReasonInvalid, "pager: Forbidden")
	}
}

func TestOpenAPI_requestsWithMarkers(t *testing.T) {
	t.Parallel()
	c := startMessages(t)
	document := c.get("/openapi/v3/apis/marked.shop.example.com/v1").want(200)
	if got := document.str("components", "schemas", "com.example.shop.marked.v1.Packing", "properties", "layers", "minimum"); got != "1" {
		t.Errorf("minimum of layers is %q, want 1", got)
	}
}
