package workloads

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
)

// storedPod returns a pod as it is stored.
func storedPod(t testing.TB, codec runtime.Codec) []byte {
	t.Helper()
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(80)}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "default", UID: "u", CreationTimestamp: metav1.Unix(1, 0), Labels: map[string]string{"a": "b"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: new(metav1.Unix(2, 0)), FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}`),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: "n",
			Containers: []corev1.Container{{
				Name: "c", Image: "i", LivenessProbe: probe, Env: []corev1.EnvVar{{Name: "A", Value: "<&>\u2028"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}},
			}},
		},
	}
	legacyscheme.Scheme.Default(pod)
	internal, err := legacyscheme.Scheme.ConvertToVersion(pod, core.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	data, err := runtime.Encode(codec, internal)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCodecs_decode_likeUpstreams(t *testing.T) {
	codec, _, err := codecs()(schema.GroupResource{Resource: "pods"})
	if err != nil {
		t.Fatal(err)
	}
	data := storedPod(t, codec)
	got, err := runtime.Decode(codec, data)
	if err != nil {
		t.Fatal(err)
	}
	want, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(core.SchemeGroupVersion), data)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if again, err := runtime.Encode(codec, got); err != nil || !bytes.Equal(again, data) {
		t.Errorf("encoded again, it is %s, %v, want %s", again, err, data)
	}
	if _, err := runtime.Decode(codec, data[:len(data)/2]); err == nil {
		t.Error("half of an object is decoded")
	}
}

func BenchmarkCodecs_decode(b *testing.B) {
	codec, _, err := codecs()(schema.GroupResource{Resource: "pods"})
	if err != nil {
		b.Fatal(err)
	}
	data := storedPod(b, codec)
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := runtime.Decode(codec, data); err != nil {
			b.Fatal(err)
		}
	}
}
