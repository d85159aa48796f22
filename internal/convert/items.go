package convert

import (
	"bytes"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ItemEncoder returns what encodes objects of a kind, as they are stored, as JSON of a version, each
// with its kind. What it returns must not be changed. It remembers what lately was encoded, if
// stored says that an object is known by its UID and resource version. It does not change the
// objects, and may be called concurrently.
func (m *Machinery) ItemEncoder(kind schema.GroupVersionKind, stored bool) (func(objects []runtime.Object) ([][]byte, error), error) {
	group := m.Of(kind.Group)
	info, ok := runtime.SerializerInfoForMediaType(group.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("encode %s: there is no JSON", kind)
	}
	codec := group.Codecs.EncoderForVersion(info.Serializer, kind.GroupVersion())
	number := m.items.Number()
	return func(objects []runtime.Object) ([][]byte, error) {
		known := make([]metav1.Object, len(objects))
		for i := range objects {
			if stored {
				known[i], _ = objects[i].(metav1.Object)
			}
		}
		return m.items.Encode(number, known, func(i int) ([]byte, error) {
			// Encoding sets the kind, which readers share.
			copied := reflect.New(reflect.TypeOf(objects[i]).Elem())
			copied.Elem().Set(reflect.ValueOf(objects[i]).Elem())
			var item bytes.Buffer
			if err := codec.Encode(copied.Interface().(runtime.Object), &item); err != nil {
				return nil, err
			}
			return bytes.Clone(bytes.TrimSuffix(item.Bytes(), []byte("\n"))), nil
		})
	}, nil
}
