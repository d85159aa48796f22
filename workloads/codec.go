package workloads

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/annexapi/annex/internal/model/convert"
)

// codecs returns a function that makes the codec of a resource's stored objects, and returns the version that it encodes: JSON of
// the group's preferred version.
func codecs() func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	type stored struct {
		codec   runtime.Codec
		version runtime.GroupVersioner
	}
	byGroup := map[string]stored{}
	decoder := convert.NewStoredDecoder(legacyscheme.Scheme, legacyscheme.Codecs)
	return func(resource schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
		if made, ok := byGroup[resource.Group]; ok {
			return made.codec, made.version, nil
		}
		versions := legacyscheme.Scheme.PrioritizedVersionsForGroup(resource.Group)
		if len(versions) == 0 {
			return nil, nil, fmt.Errorf("the group %q has no versions", resource.Group)
		}
		codec, version, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
			StorageMediaType:  runtime.ContentTypeJSON,
			StorageSerializer: legacyscheme.Codecs,
			StorageVersion:    versions[0],
			MemoryVersion:     schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal},
			// A list decodes all objects that are not in the cache of objects.
			DecoderDecoratorFn: func([]runtime.Decoder) []runtime.Decoder { return []runtime.Decoder{decoder} },
		})
		if err != nil {
			return nil, nil, err
		}
		byGroup[resource.Group] = stored{codec, version}
		return codec, version, nil
	}
}
