package convert

import (
	"fmt"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/apis/example/install"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
)

// Decodes with upstream's codec and with ours.
func TestStorageCodec_decode_likeUpstream(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	upstream := codecs.LegacyCodec(examplev1.SchemeGroupVersion)
	ours := NewStorageCodec(scheme, codecs, examplev1.SchemeGroupVersion, "")

	pod := &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "web"}},
		Spec:       example.PodSpec{NodeName: "n"},
	}
	encoded, err := runtime.Encode(ours, pod)
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := runtime.Encode(upstream, pod); err != nil || string(theirs) != string(encoded) {
		t.Errorf("encoded %q, upstream does %q, %v", encoded, theirs, err)
	}
	if kind, err := (storedMeta{}).Interpret(encoded); err != nil || *kind != examplev1.SchemeGroupVersion.WithKind("Pod") {
		t.Errorf("the front of %s is read as %v, %v", encoded, kind, err)
	}
	const version = `"apiVersion":"example.apiserver.k8s.io/v1"`
	for _, data := range []string{
		string(encoded),
		`{"kind":"Pod",` + version + `}`,
		`{` + version + `,"kind":"Pod","metadata":{"name":"a"}}`,
		`{ "kind": "Pod", ` + version + ` }`,
		"kind: Pod\napiVersion: example.apiserver.k8s.io/v1\n",
		`{"kind":"P\u006fd",` + version + `}`,
		`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io\/v1"}`,
		`{"kind":"Pod",` + version + `,"metadata":{"labels":{"app":`,
		`{"kind":"Pod",` + version,
		`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v7"}`,
		`{"kind":"Pot",` + version + `}`,
		`{"kind":"Pod","apiVersion":"a/b/c"}`,
		`{"kind":"Pod","apiVersion":""}`,
		`{"kind":"","apiVersion":""}`,
		`{"kind":"Pod"}`,
		`{"kind":"`,
		`{}`,
		``,
		"\x00\x01",
	} {
		want, wantKind, wantErr := upstream.Decode([]byte(data), nil, &example.Pod{})
		got, gotKind, gotErr := ours.Decode([]byte(data), nil, &example.Pod{})
		if (gotErr == nil) != (wantErr == nil) {
			t.Errorf("decode %q: %v, upstream says %v", data, gotErr, wantErr)
			continue
		}
		if wantErr == nil {
			want.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		}
		if wantErr == nil && (!reflect.DeepEqual(got, want) || fmt.Sprint(gotKind) != fmt.Sprint(wantKind)) {
			t.Errorf("decode %q: %v %+v, upstream makes %v %+v", data, gotKind, got, wantKind, want)
		}
	}
}

func TestFormOf(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	machinery := &Machinery{Scheme: scheme, Codecs: codecs}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: example.PodSpec{NodeName: "n"}}
	kind := examplev1.SchemeGroupVersion.WithKind("Pod")

	encoded := map[string][]byte{}
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		codec := NewStorageCodec(scheme, codecs, examplev1.SchemeGroupVersion, mediaType)
		data, err := runtime.Encode(codec, pod)
		if err != nil {
			t.Fatal(err)
		}
		encoded[mediaType] = data
		if form, ok := FormOf(data); !ok || form != (Form{kind, mediaType}) {
			t.Errorf("%s: got %v, %t", mediaType, form, ok)
		}
		for _, other := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			got, err := runtime.Decode(NewStorageCodec(scheme, codecs, examplev1.SchemeGroupVersion, other), data)
			if err != nil || !reflect.DeepEqual(got, pod) {
				t.Errorf("%s is read by a codec of %s as %+v, %v", mediaType, other, got, err)
			}
		}
		if text, err := machinery.StoredJSON(data); err != nil || string(text) != string(encoded[runtime.ContentTypeJSON]) {
			t.Errorf("%s as JSON: %s, %v", mediaType, text, err)
		}
		for n := range data {
			form, ok := FormOf(data[:n]) // must not panic
			if ok && form.GroupVersionKind != kind {
				t.Errorf("%d bytes of %s are a %v", n, mediaType, form)
			}
		}
	}
	for data, want := range map[string]string{
		`{"apiVersion":"b/v2","kind":"Pot"}`:            "b/v2 Pot",
		" { \"kind\" : \"Pot\", \"apiVersion\":\"v1\"}": "v1 Pot",
		"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pot":          "v1 Pot",
		"k8s\x00\x12\x00\x0a\x09\x0a\x02v1\x12\x03Pot":  "v1 Pot", // fields in another order
		"k8s\x00\x0a\x05\x12\x03Pot":                    "",
		"k8s\x00\x0a\x0a\x0a\x03a/b/c\x12\x03Pot":       "",
		"k8s\x00\x0a\xff\xff\xff\xff\x0f":               "",
		"k8s\x00":                                       "",
		"k8s:enc:aescbc:v1:key:\x00\x01":                "",
		`{"kind":"Pot"}`:                                "",
		"{}":                                            "",
		"":                                              "",
		"\xd9\xd9\xf7\xa1":                              "",
	} {
		form, ok := FormOf([]byte(data))
		got := ""
		if ok {
			got = form.GroupVersion().String() + " " + form.Kind
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", data, got, want)
		}
	}
	for _, data := range []string{"k8s\x00", "k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pot", string(encoded[runtime.ContentTypeProtobuf][:20])} {
		if text, err := machinery.StoredJSON([]byte(data)); err == nil {
			t.Errorf("%q as JSON: %s", data, text)
		}
	}
}

// What the reader remembers of one object must not decide about another one.
func TestFormReader_anyOrder_isFormOf(t *testing.T) {
	all := []string{
		`{"kind":"Pot","apiVersion":"v1","a":1}`, `{"kind":"Pot","apiVersion":"v1"`, `{"kind":"Pot","apiVersion":"v1beta1"}`,
		`{"kind":"Pot","apiVersion":"v1`, `{"kind":"Pots","apiVersion":"v1"}`, `{"apiVersion":"v1","kind":"Pot"}`, `{}`, ``,
		"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pot", "k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pot\x12\x01x", "k8s\x00\x0a\x0a\x0a\x02v1\x12\x04Pots",
		"k8s\x00\x12\x00\x0a\x09\x0a\x02v1\x12\x03Pot", "k8s\x00\x12\x00\x0a\x09\x0a\x02v2\x12\x03Pot", "k8s\x00\x0a\x09\x0a\x02v1\x12\x03Po",
	}
	for _, before := range all {
		for _, data := range all {
			var r FormReader
			r.FormOf([]byte(before))
			got, ok := r.FormOf([]byte(data))
			if want, wantOK := FormOf([]byte(data)); got != want || ok != wantOK {
				t.Errorf("%q after %q: %v, %t, want %v, %t", data, before, got, ok, want, wantOK)
			}
		}
	}
}
