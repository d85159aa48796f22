package plainjson_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"

	"github.com/annexapi/annex/internal/wire/plainjson"
)

type named string

type loud string

func (l loud) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(string(l))), nil }

// everything has a field for each case of a plan.
type everything struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Untagged  string
	Named     named             `json:"named"`
	Loud      loud              `json:"loud,omitempty"`
	Bool      bool              `json:"bool,omitempty"`
	Int8      int8              `json:"int8,omitempty"`
	Int64     int64             `json:"int64"`
	Uint16    uint16            `json:"uint16,omitempty"`
	Float     float64           `json:"float,omitempty"`
	Bytes     []byte            `json:"bytes,omitempty"`
	Strings   []string          `json:"strings"`
	Array     [2]int            `json:"array,omitempty"`
	Any       any               `json:"any,omitempty"`
	Number    json.Number       `json:"number,omitempty"`
	Raw       json.RawMessage   `json:"raw,omitempty"`
	Map       map[string]string `json:"map,omitempty"`
	Typed     map[named]named   `json:"typed,omitempty"`
	Ints      map[int]string    `json:"ints,omitempty"`
	Inner     *inner            `json:"inner,omitempty"`
	Inners    []inner           `json:"inners,omitempty"`
	ByName    map[string]inner  `json:"byName,omitempty"`
	Pointers  []*inner          `json:"pointers,omitempty"`
	Twice     **int             `json:"twice,omitempty"`
	Zero      inner             `json:"zero,omitzero"`
	Time      metav1.Time       `json:"time"`
	Later     *metav1.Time      `json:"later,omitempty"`
	Micro     metav1.MicroTime  `json:"micro,omitempty"`
	Quantity  resource.Quantity `json:"quantity,omitempty"`
	Port      intstr.IntOrString
	Duration  *metav1.Duration     `json:"duration,omitempty"`
	Fields    metav1.FieldsV1      `json:"fields,omitempty"`
	Extension runtime.RawExtension `json:"extension,omitempty"`
	Skipped   string               `json:"-"`
	private   string
}

type inner struct {
	Name  string `json:"name"`
	Count int32  `json:"count,omitempty"`
	Next  *inner `json:"next,omitempty"`
}

// library decodes by the libraries, and returns an error if strict decoding does.
func library(data []byte, into any) bool {
	strict, err := kjson.UnmarshalStrict(data, into)
	return err == nil && len(strict) == 0
}

// checkDecode compares with the libraries. It reports whether the plan has decoded the data.
func checkDecode(t *testing.T, plans *plainjson.Plans, data []byte, empty func() any) bool {
	t.Helper()
	got, want, lax := empty(), empty(), empty()
	if !plans.Decode(data, got) {
		if !reflect.DeepEqual(got, empty()) {
			t.Errorf("%s: what could not be decoded has left %+v", data, got)
		}
		return false
	}
	if !library(data, want) {
		t.Errorf("%s: is refused by strict decoding", data)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, lax); err != nil {
		t.Errorf("%s: %v", data, err)
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(got, lax) {
		t.Errorf("%s:\n got %+v\nwant %+v\n lax %+v", data, got, want, lax)
	}
	return true
}

func checkEncode(t *testing.T, plans *plainjson.Plans, value any) bool {
	t.Helper()
	var want bytes.Buffer
	err := json.NewEncoder(&want).Encode(value)
	for range 2 { // the second time, encodings may be remembered
		got, ok := plans.Append([]byte("before"), value)
		if !ok {
			if string(got) != "before" {
				t.Errorf("%+v: what could not be encoded has left %s", value, got)
			}
			return false
		}
		if err != nil {
			t.Errorf("%+v: is encoded, and should fail: %v", value, err)
		}
		if string(got) != "before"+want.String() {
			t.Errorf("%+v:\n got %s\nwant %s", value, got, want.String())
		}
	}
	return true
}

func emptyEverything() any { return &everything{} }
func emptyPod() any        { return &corev1.Pod{} }

const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"default","uid":"9a0b","resourceVersion":"7","creationTimestamp":"2026-01-02T03:04:05Z",
	"labels":{"app":"web","tier":"frönt"},"annotations":{"note":"a \"quoted\" <b>\u00e9</b> \\ line\nbreak\ud83d\ude00"},"finalizers":["example.com/a"],
	"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u","controller":true}],
	"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}}]},
	"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{"limits":{"cpu":"100m","memory":"1Gi"}},
	"env":[{"name":"A","value":"b"},{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],"livenessProbe":{"httpGet":{"port":"http","path":"/"},"periodSeconds":10}}],
	"nodeSelector":{},"tolerations":[],"terminationGracePeriodSeconds":30,"hostNetwork":false},"status":{"phase":"Running","startTime":null,"conditions":null}}`

var full = `{"kind":"E","apiVersion":"v1","metadata":{"name":"n","creationTimestamp":null},"Untagged":"u","named":"n","bool":true,"int8":-128,"int64":9223372036854775807,"uint16":65535,
	"float":1.5e3,"bytes":"aGk=","strings":["a",null,""],"array":[1,2],"any":{"a":[1,2.5,"x",null]},"number":12.50,"raw":{"a": 1},"map":{"a":"b","c":null},"typed":{"k":"v"},"ints":{"1":"one"},
	"inner":{"name":"i","count":2,"next":{"name":"j"}},"inners":[{"name":"x"},{}],"byName":{"b":{"name":"y"},"a":{"name":"z"}},"pointers":[null,{"name":"p"}],"twice":3,"zero":{"name":"z"},
	"time":"2026-01-02T03:04:05+01:00","later":"2026-01-02T03:04:05.999Z","micro":"2026-01-02T03:04:05.123456Z","quantity":"1500m","Port":80,"duration":"5s",
	"fields":{ "f:a" : {} },"extension":{"x": 1}}`

func TestPlans_matchLibraries(t *testing.T) {
	plans := plainjson.New()
	if !checkDecode(t, plans, []byte(pod), emptyPod) || !checkDecode(t, plans, []byte(full), emptyEverything) {
		t.Error("ordinary objects are not decoded by a plan")
	}
	for _, c := range []struct {
		data  string
		empty func() any
	}{{pod, emptyPod}, {full, emptyEverything}, {`{}`, emptyPod}, {`{}`, emptyEverything}} {
		value := c.empty()
		if !library([]byte(c.data), value) {
			t.Fatal(c.data)
		}
		if !checkEncode(t, plans, value) {
			t.Errorf("%s is not encoded by a plan", c.data)
		}
	}
	if name := (&everything{Loud: "x", Skipped: "y", private: "z"}); !checkEncode(t, plans, name) {
		t.Error("a type that writes itself is not encoded")
	}
}

func TestPlans_unsupportedInput(t *testing.T) {
	plans := plainjson.New()
	for _, data := range []string{
		``, ` `, `nul`, `[]`, `"x"`, `{`, `{}x`, `{} {}`, `{"kind":"a"`, `{"kind":"a",}`, `{,}`, `{"kind" "a"}`, `{"kind":}`, `{kind:"a"}`,
		`{"kind":"a","kind":"a"}`, `{"unknown":1}`, `{"Kind":"a"}`, `{"kin\u0064":"a"}`, `{"kind":1}`, `{"kind":"a` + "\n" + `"}`,
		`{"kind":"\x"}`, `{"kind":"\u12g4"}`, `{"kind":"a`,
		`{"bool":"true"}`, `{"bool":tru}`, `{"bool":truex}`, `{"int8":128}`, `{"int8":1.0}`, `{"int8":1e2}`, `{"int8":01}`, `{"int8":-}`,
		`{"int8":+1}`, `{"int8":"1"}`, `{"uint16":-1}`, `{"uint16":65536}`,
		`{"int64":9223372036854775808}`, `{"float":.5}`, `{"float":1.}`, `{"float":1e}`, `{"float":1e999}`, `{"strings":{}}`,
		`{"strings":["a",]}`, `{"strings":["a"}`, `{"strings":[1]}`, `{"strings":["a" "b"]}`,
		`{"map":{"a":1}}`, `{"map":{"a":"b","a":"b"}}`, `{"map":{"a":"b",}}`, `{"map":[]}`, `{"typed":{"a":"b","a":"c"}}`,
		`{"inner":{"nam":"x"}}`, `{"inner":[]}`, `{"any":{"a":1,"a":2}}`, `{"any":{"a":1]}`,
		`{"time":"yesterday"}`, `{"time":5}`, `{"quantity":"much"}`, `{"fields":{"a":}}`, `{"fields":{"a":1,}}`, `{"fields":null}`,
		`{"any":null}`, `{"bytes":"*"}`, `{"array":"x"}`, `{"raw":{"a":tru}}`,
		`{"any":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
		`{"inner":` + strings.Repeat(`{"next":`, 300) + `null` + strings.Repeat("}", 301),
	} {
		if checkDecode(t, plans, []byte(data), emptyEverything) {
			t.Errorf("%s is decoded by a plan", data)
		}
	}
	filled := &everything{Untagged: "x"}
	if plans.Decode([]byte(`{}`), filled) || filled.Untagged != "x" {
		t.Error("a value that is not empty is decoded into")
	}
	if plans.Decode([]byte(`{}`), everything{}) || plans.Decode([]byte(`{}`), (*everything)(nil)) || plans.Decode([]byte(`{}`), nil) {
		t.Error("what is no pointer to a struct is decoded into")
	}
	circle := &inner{Name: "a"}
	circle.Next = circle
	if checkEncode(t, plans, circle) {
		t.Error("what contains itself is encoded")
	}
	for _, value := range []any{&everything{Number: "x"}, &everything{Raw: json.RawMessage("{")}, &everything{Any: func() {}},
		everything{}, (*everything)(nil), nil} {
		if checkEncode(t, plans, value) {
			t.Errorf("%+v is encoded", value)
		}
	}
}

// Types with fields between which the libraries choose.
func TestPlans_ambiguousTypes(t *testing.T) {
	type A struct{ X string }
	type B struct{ X string }
	type both struct {
		A
		B
	}
	type hidden struct {
		metav1.TypeMeta `       json:",inline"`
		Kind            string `json:"kind"`
	}
	type behind struct{ *metav1.TypeMeta }
	type quoted struct {
		N int `json:"n,string"`
	}
	type odd struct {
		N int `json:"a b"`
	}
	plans := plainjson.New()
	for _, empty := range []func() any{
		func() any { return &both{} }, func() any { return &hidden{} }, func() any { return &behind{} }, func() any { return &quoted{} },
		func() any { return &odd{} },
		func() any { return &metav1.Time{} },
	} {
		if checkDecode(t, plans, []byte(`{}`), empty) || checkEncode(t, plans, empty()) {
			t.Errorf("%T has a plan", empty())
		}
	}
	type holds struct {
		Quoted quoted `json:"quoted"`
		Time   metav1.Time
	}
	if !checkDecode(t, plans, []byte(`{"quoted":{"n":"5"}}`), func() any { return &holds{} }) ||
		!checkEncode(t, plans, &holds{Quoted: quoted{N: 5}}) {
		t.Error("a struct inside of which the libraries are needed has no plan")
	}
}

func TestPlans_randomStrings(t *testing.T) {
	plans := plainjson.New()
	dice := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "é", "\u2028", "\u2029", "<", ">", "&", `"`, `\`, "\n", "\x00", "\x7f", "\xff", "\xc3", "😀", " ", "/"}
	for range 2000 {
		text := ""
		for range dice.IntN(6) {
			text += pieces[dice.IntN(len(pieces))]
		}
		e := &everything{Untagged: text, Map: map[string]string{text: text, "b": ""}, Typed: map[named]named{named(text): named(text)}}
		e.Time = metav1.NewTime(time.Unix(dice.Int64N(1<<38), 5))
		if !checkEncode(t, plans, e) {
			t.Fatalf("%q is not encoded", text)
		}
		if quoted, err := json.Marshal(text); err == nil {
			checkDecode(t, plans, []byte(`{"Untagged":`+string(quoted)+`,"map":{`+string(quoted)+`:`+string(quoted)+`}}`), emptyEverything)
		}
		checkDecode(t, plans, []byte(`{"Untagged":"`+text+`"}`), emptyEverything)
	}
}

func TestPlans_concurrentUse(t *testing.T) {
	plans := plainjson.New()
	done := make(chan bool)
	for range 4 {
		go func() {
			for range 50 {
				checkDecode(t, plans, []byte(pod), emptyPod)
				checkEncode(t, plans, &everything{Fields: *metav1.NewFieldsV1(`{"f:a":{}}`)})
			}
			done <- true
		}()
	}
	for range 4 {
		<-done
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(pod))
	f.Add([]byte(full))
	f.Add([]byte(`{"metadata":{"managedFields":[{"fieldsV1":{"f:a":{}}}]},"strings":[],"map":{}}`))
	plans := plainjson.New()
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, empty := range []func() any{emptyPod, emptyEverything} {
			checkDecode(t, plans, data, empty)
			if value := empty(); library(data, value) {
				checkEncode(t, plans, value)
			}
		}
	})
}

// small resembles most objects: metadata with managed fields, and a few fields of its own.
type small struct {
	metav1.TypeMeta   `      json:",inline"`
	metav1.ObjectMeta `      json:"metadata,omitempty"`
	Spec              inner `json:"spec,omitempty"`
}

var object = []byte(
	`{"kind":"Small","apiVersion":"example.com/v1","metadata":{"name":"web-0001",` +
		`"namespace":"default","uid":"3f1b5d56-0d6b-4a28-9f5c-0f0f3b8f4b11","creationTimestamp":"2026-01-02T03:04:05Z",` +
		`"labels":{"app":"web","group":"group-07","tier":"front"},"annotations":{"example.com/note":"` + strings.Repeat(
		"image replicas template container port env value limit request ",
		4,
	) + `","example.com/sequence":"00000042"},` +
		`"managedFields":[{"manager":"kubectl","operation":"Update","apiVersion":"example.com/v1",` +
		`"time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},` +
		`"f:example.com/note":{},"f:example.com/sequence":{}},"f:labels":{".":{},"f:app":{},` +
		`"f:group":{},"f:tier":{}}},"f:spec":{"f:count":{},"f:name":{}}}}]},` +
		`"spec":{"name":"n","count":3}}`,
)

func BenchmarkObject(b *testing.B) {
	plans := plainjson.New()
	value := &small{}
	if !library(object, value) {
		b.Fatal(object)
	}
	buffer := make([]byte, 0, 4096)
	for name, of := range map[string]struct{ plan, library func() bool }{
		"encode": {
			func() bool { _, ok := plans.Append(buffer, value); return ok },
			func() bool { return json.NewEncoder(bytes.NewBuffer(buffer)).Encode(value) == nil },
		},
		"decode": {
			func() bool { return plans.Decode(object, &small{}) },
			func() bool { return library(object, &small{}) },
		},
	} {
		for by, do := range map[string]func() bool{"plan": of.plan, "library": of.library} {
			b.Run(name+"/"+by, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !do() {
						b.Fatal(string(object))
					}
				}
			})
		}
	}
}
