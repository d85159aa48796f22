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

// asProtobufKeeps returns an encoder that writes objects of Kubernetes' own kinds as they are once they have been encoded as
// protobuf, in which a kube-apiserver stores them: without empty lists and maps, for one, which clients then see as null.
//
// Objects with others in them are written as they are: a message has no kind of these, and a kube-apiserver knows it without,
// as it does of the claims that a StatefulSet makes.
func asProtobufKeeps(encoder runtime.Encoder) runtime.Encoder {
	return protobufKeeps{encoder, &sync.Map{}}
}

type protobufKeeps struct {
	runtime.Encoder
	keeps *sync.Map // by Go type, whether protobuf keeps all of it
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
	kept.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind()) // which the message has not
	return e.Encoder.Encode(kept, w)
}

// isKept says whether objects that a pointer to a Go type is to are written as protobuf keeps them.
func (e protobufKeeps) isKept(t reflect.Type) bool {
	if known, ok := e.keeps.Load(t); ok {
		return known.(bool)
	}
	kept := isOfKubernetes(t) && !hasObjects(t.Elem(), map[reflect.Type]bool{})
	e.keeps.Store(t, kept)
	return kept
}

// hasObjects says whether there are objects with a kind of their own within those of a Go type.
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

// isObject says whether a Go type is a struct that says its kind.
func isObject(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	f, ok := t.FieldByName("TypeMeta")
	return ok && f.Type == reflect.TypeFor[metav1.TypeMeta]()
}

// isOfKubernetes says whether a pointer to a Go type is to one whose objects a kube-apiserver stores as protobuf.
func isOfKubernetes(t reflect.Type) bool {
	return strings.HasPrefix(t.Elem().PkgPath(), "k8s.io/api/")
}
