package convert

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
)

// asProtobufKeeps returns an encoder that sends objects of Kubernetes' own kinds through protobuf before encoding
// them, because a kube-apiserver stores them as protobuf. Protobuf drops empty lists and maps, for example, which
// clients of a kube-apiserver then see as null.
//
// Objects that contain other objects are encoded directly: a protobuf message does not contain the kind of inner
// objects, such as the claims of a StatefulSet, which a kube-apiserver knows without it.
func asProtobufKeeps(encoder runtime.Encoder) runtime.Encoder {
	return protobufKeeps{encoder, &sync.Map{}}
}

type protobufKeeps struct {
	runtime.Encoder
	keeps *sync.Map // by Go type: whether to send objects through protobuf
}

// Identifier implements runtime.Encoder.
func (e protobufKeeps) Identifier() runtime.Identifier {
	return "protobuf(" + e.Encoder.Identifier() + ")"
}

// Encode implements runtime.Encoder.
func (e protobufKeeps) Encode(obj runtime.Object, w io.Writer) error {
	message, ok := obj.(define.ProtobufMessage)
	if !ok || !e.isKept(reflect.TypeOf(obj)) {
		return e.Encoder.Encode(obj, w)
	}
	data := make([]byte, message.Size())
	if _, err := message.MarshalTo(data); err != nil {
		return fmt.Errorf("encode %T as protobuf: %w", obj, err)
	}
	kept := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(define.ProtobufMessage)
	if err := kept.Unmarshal(data); err != nil {
		return fmt.Errorf("decode %T from protobuf: %w", obj, err)
	}
	kept.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind()) // the message does not contain it
	return e.Encoder.Encode(kept, w)
}

// isKept reports whether objects of a Go pointer type are sent through protobuf.
func (e protobufKeeps) isKept(t reflect.Type) bool {
	if known, ok := e.keeps.Load(t); ok {
		return known.(bool)
	}
	kept := isOfKubernetes(t) && !hasObjects(t.Elem(), map[reflect.Type]bool{})
	e.keeps.Store(t, kept)
	return kept
}

// hasObjects reports whether a Go type contains objects with their own kind.
func hasObjects(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return isObject(t.Elem()) || hasObjects(t.Elem(), seen)
	case reflect.Struct:
		if seen[t] {
			return false
		}
		seen[t] = true
		for f := range t.Fields() {
			if isObject(f.Type) || hasObjects(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// isObject reports whether a Go type is a struct with a TypeMeta.
func isObject(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	f, ok := t.FieldByName("TypeMeta")
	return ok && f.Type == reflect.TypeFor[metav1.TypeMeta]()
}

// isOfKubernetes reports whether a kube-apiserver stores objects of a Go pointer type as protobuf.
func isOfKubernetes(t reflect.Type) bool {
	return strings.HasPrefix(t.Elem().PkgPath(), "k8s.io/api/")
}
