package convert

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/define"
)

// asProtobufKeeps returns an encoder that writes objects of Kubernetes' own kinds as they are once they have been encoded as
// protobuf, in which a kube-apiserver stores them: without empty lists and maps, for one, which clients then see as null.
func asProtobufKeeps(encoder runtime.Encoder) runtime.Encoder { return protobufKeeps{encoder} }

type protobufKeeps struct{ runtime.Encoder }

// Identifier implements runtime.Encoder.
func (e protobufKeeps) Identifier() runtime.Identifier {
	return "protobuf(" + e.Encoder.Identifier() + ")"
}

// Encode implements runtime.Encoder.
func (e protobufKeeps) Encode(obj runtime.Object, w io.Writer) error {
	message, ok := obj.(define.ProtobufMessage)
	if !ok || !isOfKubernetes(reflect.TypeOf(obj)) {
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

// isOfKubernetes says whether a pointer to a Go type is to one whose objects a kube-apiserver stores as protobuf.
func isOfKubernetes(t reflect.Type) bool {
	path := t.Elem().PkgPath()
	return strings.HasPrefix(path, "k8s.io/api/") || strings.HasPrefix(path, "k8s.io/kube-aggregator/")
}
