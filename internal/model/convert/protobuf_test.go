package convert

import (
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// A protobuf message lacks the kind of the claims in a StatefulSet, which a kube-apiserver returns.
func TestStorageCodec_innerObjects_keepKind(t *testing.T) {
	claims := []corev1.PersistentVolumeClaim{{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"}}}
	set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: claims}}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(appsv1.SchemeGroupVersion, set)
	scheme.AddKnownTypes(schema.GroupVersion{Group: appsv1.GroupName, Version: runtime.APIVersionInternal}, set)
	data, err := runtime.Encode(
		NewStorageCodec(scheme, serializer.NewCodecFactory(scheme), appsv1.SchemeGroupVersion, runtime.ContentTypeJSON),
		set,
	)
	if want := `"volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1"`; err != nil ||
		!strings.Contains(string(data), want) {
		t.Errorf("%s has not %s: %v", data, want, err)
	}
}

// Decodes from JSON and from protobuf, as stored by a kube-apiserver.
func TestStorageCodec_kubernetesObjects_likeProtobuf(t *testing.T) {
	for _, c := range []struct {
		obj    runtime.Object
		gv     schema.GroupVersion
		stored string // a substring of the stored JSON
	}{
		{&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{}}, Rules: []rbacv1.PolicyRule{}},
			rbacv1.SchemeGroupVersion, `"rules":null`},
		{&rbacv1.Role{Rules: []rbacv1.PolicyRule{{Verbs: []string{}}}}, rbacv1.SchemeGroupVersion, `"rules":[{"verbs":null}]`},
		{&corev1.Secret{Data: map[string][]byte{"a": nil}}, corev1.SchemeGroupVersion, `"data":{"a":""}`},
		{&corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{}}}, corev1.SchemeGroupVersion, `"limits":null`},
		{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{}}}, corev1.SchemeGroupVersion, `"name":"a"`},
		{&discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{}}}}, discoveryv1.SchemeGroupVersion,
			`"endpoints":[{"addresses":null`},
		{&flowcontrolv1.FlowSchema{Spec: flowcontrolv1.FlowSchemaSpec{Rules: []flowcontrolv1.PolicyRulesWithSubjects{{ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Namespaces: []string{}}}}}}}, flowcontrolv1.SchemeGroupVersion, `"subjects":null,"resourceRules":[{"verbs":null`},
	} {
		scheme := runtime.NewScheme()
		scheme.AddKnownTypes(c.gv, c.obj)
		scheme.AddKnownTypes(schema.GroupVersion{Group: c.gv.Group, Version: runtime.APIVersionInternal}, c.obj)
		codecs := serializer.NewCodecFactory(scheme)
		asked := c.obj.DeepCopyObject()
		form := NewStorageCodec(scheme, codecs, c.gv, runtime.ContentTypeJSON)
		data, err := runtime.Encode(form, c.obj)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(c.obj, asked) {
			t.Errorf("encoding changed the object to %+v", c.obj)
		}
		if !strings.Contains(string(data), c.stored) {
			t.Errorf("%s has not %s", data, c.stored)
		}
		if kind, ok := FormOf(data); !ok || kind.GroupVersion() != c.gv || kind.MediaType != runtime.ContentTypeJSON {
			t.Errorf("%s is told as %v, %v", data, kind, ok)
		}
		upstreams, err := runtime.Encode(NewStorageCodec(scheme, codecs, c.gv, runtime.ContentTypeProtobuf), c.obj)
		if err != nil {
			t.Fatal(err)
		}
		got, err := runtime.Decode(form, data)
		if err != nil {
			t.Fatal(err)
		}
		want, err := runtime.Decode(form, upstreams)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, and from protobuf as %+v", data, got, want)
		}
	}
}
