package convert

import (
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/define"
)

// operations are the objects that answer requests to long actions of any kind and version. They are always encoded in
// the one version in which they are served.
type operations struct {
	goType  reflect.Type // a pointer; nil without operations
	version schema.GroupVersion
}

func operationsOf(server *define.Server) operations {
	for _, k := range server.Kinds() {
		if k.Operations != nil {
			return operations{reflect.PointerTo(k.Hub().Type), k.Hub().GroupVersion}
		}
	}
	return operations{}
}

// withOperations returns a serializer that encodes operations in their own version.
func (m *Machinery) withOperations(s runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	if m.operations.goType == nil {
		return s
	}
	return operationSerializer{s, m.operations}
}

type operationSerializer struct {
	runtime.NegotiatedSerializer
	operations operations
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s operationSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	codec := s.NegotiatedSerializer.EncoderForVersion(encoder, gv)
	if gv == s.operations.version {
		return codec
	}
	return operationEncoder{codec, s.NegotiatedSerializer.EncoderForVersion(encoder, s.operations.version), s.operations.goType}
}

type operationEncoder struct {
	runtime.Encoder
	own    runtime.Encoder
	goType reflect.Type
}

var _ runtime.EncoderWithAllocator = operationEncoder{}

func (e operationEncoder) of(obj runtime.Object) runtime.Encoder {
	if reflect.TypeOf(obj) == e.goType {
		return e.own
	}
	return e.Encoder
}

// Encode implements runtime.Encoder.
func (e operationEncoder) Encode(obj runtime.Object, w io.Writer) error {
	return e.of(obj).Encode(obj, w)
}

// EncodeWithAllocator implements runtime.EncoderWithAllocator.
func (e operationEncoder) EncodeWithAllocator(obj runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	encoder := e.of(obj)
	if allocating, ok := encoder.(runtime.EncoderWithAllocator); ok {
		return allocating.EncodeWithAllocator(obj, w, memory)
	}
	return encoder.Encode(obj, w)
}
