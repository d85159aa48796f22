package reads

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The texts around the items equal the empty list that upstream's encoder writes.
func TestAppendHead_encodesAsUpstream(t *testing.T) {
	t.Parallel()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	begin := beginOfLists(&corev1.ConfigMapList{}, scheme.Codecs, corev1.SchemeGroupVersion)
	remaining := int64(7)
	for _, m := range []metav1.ListMeta{
		{},
		{ResourceVersion: "12"},
		{ResourceVersion: "12", Continue: "a<b&c\u2028", RemainingItemCount: &remaining},
		{SelfLink: "/x", Continue: `"`},
	} {
		list := &corev1.ConfigMapList{ListMeta: m, Items: []corev1.ConfigMap{}}
		var want bytes.Buffer
		if err := scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion).Encode(list, &want); err != nil {
			t.Fatal(err)
		}
		got, err := appendHead(bytes.Clone(begin), list)
		if err != nil || string(got)+endOfLists != want.String() {
			t.Errorf("%s%s, want %s: %v", got, endOfLists, &want, err)
		}
	}
	for name, other := range map[string]runtime.Object{"no list": &corev1.ConfigMap{}, "a list without items": &metav1.Status{},
		"an unknown list": &unknownList{}} {
		if begin := beginOfLists(other, scheme.Codecs, corev1.SchemeGroupVersion); begin != nil {
			t.Errorf("%s begins with %s", name, begin)
		}
	}
	if _, err := appendHead(nil, &corev1.ConfigMap{}); err == nil {
		t.Error("an object has what lists have")
	}
}

// unknownList is in no scheme.
type unknownList struct{ corev1.ConfigMapList }
