package structural_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/model/structural"
)

// shelf has fields whose JSON values Go holds in another form, or cannot hold at all.
type shelf struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Boards            *int32              `json:"boards,omitempty"`
	Height            *intstr.IntOrString `json:"height,omitempty"`
	Wood              *string             `json:"wood,omitempty"`
	Note              string              `json:"note,omitempty"`
	Books             []book              `json:"books,omitzero"`
	Lamps             []lamp              `json:"lamps,omitzero"`
	Hooks             []hook              `json:"hooks,omitzero"`
}

type hook struct {
	Name string `json:"name"`
	Note string `json:"note,omitempty"`
}

type lamp struct {
	Bulb bulb `json:"bulb"`
}

type bulb struct {
	Watts int32 `json:"watts"`
}

type book struct {
	Title string `json:"title"`
	Pages int32  `json:"pages,omitempty"`
}

func (s *shelf) DeepCopyObject() runtime.Object { copied := *s; return &copied }

const shelves = `{"metadata":{"name":"shelves.example.com"},"spec":{"group":"example.com","names":{"plural":"shelves","kind":"Shelf"},"scope":"Namespaced",
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"boards":{"type":"integer","format":"int32"},
		"height":{"x-kubernetes-int-or-string":true},
		"wood":{"type":"string","default":"oak"},
		"note":{"type":"string"},
		"books":{"type":"array","items":{"type":"object","required":["title"],"properties":{"title":{"type":"string"},"pages":{"type":"integer"}}}},
		"hooks":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],
			"properties":{"name":{"type":"string","default":"brass"},"note":{"type":"string"}}}},
		"lamps":{"type":"array","items":{"type":"object","required":["bulb"],"properties":{"bulb":{"type":"object","required":["watts"],"properties":{"watts":{"type":"integer"}}}}}}}}}}]}}`

func TestDocument_applied(t *testing.T) {
	t.Parallel()
	v, err := structural.New(
		schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shelf"},
		reflect.TypeFor[shelf](),
		shelves,
		false,
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		old, applied, merged string
		hook                 func(s *shelf)
		want, unfit          string
	}{
		"values that fit": {`{"boards":1,"wood":"oak"}`, `{"boards":2}`, `{"boards":2,"wood":"oak"}`, nil,
			`{"boards":2,"wood":"oak"}`, ""},
		"a null": {`{"boards":1,"wood":"oak"}`, `{"boards":null}`, `{"boards":null,"wood":"oak"}`, nil,
			`{"boards":null,"wood":"oak"}`, ""},
		"a null where there is a default": {`{"wood":"ash"}`, `{"wood":null}`, `{"wood":null}`, nil,
			`{"wood":"oak"}`, ""},
		"a fraction for an integer": {`{"wood":"oak"}`, `{"boards":1.5}`, `{"boards":1.5,"wood":"oak"}`, nil,
			`{"boards":1.5,"wood":"oak"}`, "boards"},
		"an integer beyond 32 bits": {`{"wood":"oak"}`, `{"boards":4294967297}`, `{"boards":4294967297,"wood":"oak"}`, nil,
			`{"boards":4294967297,"wood":"oak"}`, "boards"},
		"one in a list": {`{"wood":"oak"}`, `{"books":[{"title":"a","pages":4294967297}]}`,
			`{"books":[{"title":"a","pages":4294967297}],"wood":"oak"}`, nil,
			`{"books":[{"title":"a","pages":4294967297}],"wood":"oak"}`, "books[0].pages"},
		"another type": {`{"wood":"oak"}`, `{"height":true}`, `{"height":true,"wood":"oak"}`, nil,
			`{"height":true,"wood":"oak"}`, "height"},
		"an empty text": {`{"wood":"oak"}`, `{"note":""}`, `{"note":"","wood":"oak"}`, nil,
			`{"note":"","wood":"oak"}`, ""},
		"an item without a required field": {`{"books":[{"title":"a"}],"wood":"oak"}`, `{"books":[{"pages":2}]}`,
			`{"books":[{"pages":2}],"wood":"oak"}`, nil,
			`{"books":[{"pages":2}],"wood":"oak"}`, ""},
		"an item without a required object": {`{"lamps":[{"bulb":{"watts":5}}],"wood":"oak"}`, `{"lamps":[{}]}`,
			`{"lamps":[{}],"wood":"oak"}`, nil,
			`{"lamps":[{}],"wood":"oak"}`, ""},
		"an item with an empty required object": {`{"wood":"oak"}`, `{"lamps":[{"bulb":{}}]}`, `{"lamps":[{"bulb":{}}],"wood":"oak"}`, nil,
			`{"lamps":[{"bulb":{}}],"wood":"oak"}`, ""},
		"a null in an item whose key is a default": {`{"hooks":[{"name":"iron"},{"name":"brass","note":"a"}],"wood":"oak"}`,
			`{"hooks":[{"note":null}]}`,
			`{"hooks":[{"name":"iron"},{"name":"brass","note":null}],"wood":"oak"}`, nil,
			`{"hooks":[{"name":"iron"},{"name":"brass","note":null}],"wood":"oak"}`, ""},
		"a value that a hook changes": {`{"boards":1,"wood":"oak"}`, `{"boards":2,"note":"b"}`, `{"boards":2,"note":"b","wood":"oak"}`,
			func(s *shelf) { *s.Boards, s.Note = 3, "" }, `{"boards":3,"wood":"oak"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj, err := v.FillMerged(decoded(t, []byte(test.merged)).(map[string]any))
			if err != nil {
				t.Fatal(err)
			}
			if test.hook != nil {
				test.hook(obj.(*shelf))
			}
			r := httptest.NewRequest(http.MethodPatch, "/", strings.NewReader(test.applied))
			r.Header.Set("Content-Type", "application/apply-patch+yaml")
			r = structural.CaptureBody(r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{Verb: "patch"})))
			if _, err := io.ReadAll(r.Body); err != nil {
				t.Fatal(err)
			}
			doc, err := v.Document(r.Context(), obj, decoded(t, []byte(test.old)).(map[string]any))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"apiVersion", "kind", "metadata"} {
				delete(doc, name)
			}
			if got := decoded(t, encoded(t, doc)); !reflect.DeepEqual(got, decoded(t, []byte(test.want))) {
				data, _ := json.Marshal(got)
				t.Errorf("is judged as %s, want %s", data, test.want)
			}
			unfit := ""
			for _, err := range v.Unfit(r.Context(), func(string) bool { return true }) {
				unfit += err.Field
			}
			if unfit != test.unfit {
				t.Errorf("does not fit: %q, want %q", unfit, test.unfit)
			}
		})
	}
}
