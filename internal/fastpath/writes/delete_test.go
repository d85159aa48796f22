package writes

import (
	"bytes"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func TestAppendStatus_encodesAsUpstream(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	media, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	encoder := codecs.EncoderForVersion(media.Serializer, schema.GroupVersion{Version: "v1"})
	success := func(details *metav1.StatusDetails) *metav1.Status {
		return &metav1.Status{Status: metav1.StatusSuccess, Details: details}
	}
	whole := metav1.StatusDetails{Name: "a", Group: "g.example.com", Kind: "as", UID: "u"}
	for _, test := range []struct {
		status *metav1.Status
		plain  bool
	}{
		{success(&whole), true},
		{success(&metav1.StatusDetails{}), true},
		{success(&metav1.StatusDetails{UID: "u"}), true},
		{success(&metav1.StatusDetails{Name: "a:b/ ~", Kind: "as"}), true},
		{success(nil), false},
		{success(&metav1.StatusDetails{Name: "a<b"}), false},
		{success(&metav1.StatusDetails{Name: "a&b"}), false},
		{success(&metav1.StatusDetails{Name: `a"b`}), false},
		{success(&metav1.StatusDetails{Name: "a\\b"}), false},
		{success(&metav1.StatusDetails{Name: "\x7f"}), false},
		{success(&metav1.StatusDetails{Name: "é"}), false},
		{success(&metav1.StatusDetails{Name: "a", RetryAfterSeconds: 1}), false},
		{success(&metav1.StatusDetails{Name: "a", Causes: []metav1.StatusCause{{}}}), false},
		{&metav1.Status{Status: metav1.StatusFailure, Details: &whole}, false},
		{&metav1.Status{Status: metav1.StatusSuccess, Details: &whole, Code: 200}, false},
		{&metav1.Status{Status: metav1.StatusSuccess, Details: &whole, Message: "m"}, false},
		{&metav1.Status{Status: metav1.StatusSuccess, Details: &whole, Reason: "r"}, false},
		{&metav1.Status{Status: metav1.StatusSuccess, Details: &whole, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, false},
	} {
		ours, plain := appendStatus(nil, test.status)
		if plain != test.plain {
			t.Errorf("%+v: written here: %t", test.status, plain)
		}
		if !plain {
			continue
		}
		var theirs bytes.Buffer
		if err := encoder.Encode(test.status.DeepCopy(), &theirs); err != nil {
			t.Fatal(err)
		}
		if theirs.String() != string(ours) {
			t.Errorf("upstream's %s, ours %s", theirs.String(), ours)
		}
	}
}
