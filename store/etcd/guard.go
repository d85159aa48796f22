package etcd

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

// sizes computes the average size of decoded objects, in their encoded form without encryption. It may be used
// concurrently.
type sizes struct{ objects, bytes atomic.Int64 }

func (s *sizes) add(bytes int) {
	s.objects.Add(1)
	s.bytes.Add(int64(bytes))
}

// of returns the estimated size of a number of objects, in bytes.
func (s *sizes) of(objects int64) int64 {
	return objects * s.bytes.Load() / max(s.objects.Load(), 1)
}

// guardedCodec turns panics in conversions and defaults into errors. Upstream's store runs them in goroutines of its
// own, where a panic ends the process.
type guardedCodec struct {
	runtime.Codec
	decoded *sizes
}

// Decode implements runtime.Decoder.
func (c guardedCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (object runtime.Object, kind *schema.GroupVersionKind, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("decode: panic: %v", reason)
		}
	}()
	c.decoded.add(len(data))
	return c.Codec.Decode(data, defaults, into)
}

// Encode implements runtime.Encoder.
func (c guardedCodec) Encode(object runtime.Object, w io.Writer) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("encode: panic: %v", reason)
		}
	}()
	return c.Codec.Encode(object, w)
}

// guardedAttributes returns only the labels and names of an object whose selectable fields fail. The watch cache
// would end the process at a panic, and omit the object at an error.
func guardedAttributes(attributes storage.AttrFunc, logger *slog.Logger) storage.AttrFunc {
	return func(object runtime.Object) (label labels.Set, field fields.Set, err error) {
		defer func() {
			reason := recover()
			if reason == nil {
				return
			}
			m, noMeta := meta.Accessor(object)
			if noMeta != nil {
				err = fmt.Errorf("selectable fields: panic: %v", reason)
				return
			}
			logger.Error("A selectable field caused a panic: field selectors do not match the object",
				"namespace", m.GetNamespace(), "name", m.GetName(), "panic", reason)
			label = m.GetLabels()
			field = fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
		}()
		return attributes(object)
	}
}

// guardedIndexers omit an object from an index if its values fail, as guardedAttributes do. The watch cache would end
// the process even at an error.
func guardedIndexers(indexers *cache.Indexers) *cache.Indexers {
	if indexers == nil {
		return nil
	}
	guarded := cache.Indexers{}
	for name, index := range *indexers {
		guarded[name] = func(object any) (values []string, err error) {
			defer func() {
				if recover() != nil || err != nil {
					values, err = nil, nil
				}
			}()
			return index(object)
		}
	}
	return &guarded
}

// guardedTriggers return an empty value for an object whose value fails.
func guardedTriggers(triggers storage.IndexerFuncs) storage.IndexerFuncs {
	if triggers == nil {
		return nil
	}
	guarded := storage.IndexerFuncs{}
	for name, trigger := range triggers {
		guarded[name] = func(object runtime.Object) (value string) {
			defer func() {
				if recover() != nil {
					value = ""
				}
			}()
			return trigger(object)
		}
	}
	return guarded
}
