package upstream

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/define"
)

// withoutProtobuf is a serializer that does not offer protobuf. Clients that
// prefer it fall back to JSON, those that insist get a 406.
type withoutProtobuf struct {
	runtime.NegotiatedSerializer
}

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

// protobufMessage is what upstream's protobuf serializer needs of a type.
type protobufMessage interface {
	Reset()
	Unmarshal(data []byte) error
	MarshalTo(data []byte) (int, error)
	Size() int
}

// speaksProtobuf says whether all types that the group serves can be encoded as
// protobuf. What is offered is decided for a group as a whole.
func speaksProtobuf(g *define.Group) bool {
	message := reflect.TypeFor[protobufMessage]()
	for _, k := range g.Kinds {
		for _, v := range k.Versions {
			for _, t := range []reflect.Type{v.Type, v.ListType} {
				if !v.Unserved && !reflect.PointerTo(t).Implements(message) {
					return false
				}
			}
		}
		for _, s := range k.CustomSubresources {
			for _, t := range s.Types(k) {
				if !reflect.PointerTo(t).Implements(message) {
					return false
				}
			}
		}
	}
	return true
}
