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

// TestStoredObjectsAreDecodedAsUpstreamDoes decodes with both codecs.
func TestStoredObjectsAreDecodedAsUpstreamDoes(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	upstream := codecs.LegacyCodec(examplev1.SchemeGroupVersion)
	ours := NewStorageCodec(scheme, codecs, examplev1.SchemeGroupVersion)

	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "web"}}, Spec: example.PodSpec{NodeName: "n"}}
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
