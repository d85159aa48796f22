package workloads

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// codecs returns a function that makes the codec of a resource's stored objects: JSON of the group's preferred version.
func codecs() func(schema.GroupResource) (runtime.Codec, error) {
	byGroup := map[string]runtime.Codec{}
	return func(resource schema.GroupResource) (runtime.Codec, error) {
		if codec, ok := byGroup[resource.Group]; ok {
			return codec, nil
		}
		versions := legacyscheme.Scheme.PrioritizedVersionsForGroup(resource.Group)
		if len(versions) == 0 {
			return nil, fmt.Errorf("the group %q has no versions", resource.Group)
		}
		codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
			StorageMediaType:  runtime.ContentTypeJSON,
			StorageSerializer: legacyscheme.Codecs,
			StorageVersion:    versions[0],
			MemoryVersion:     schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal},
		})
		if err != nil {
			return nil, err
		}
		byGroup[resource.Group] = codec
		return codec, nil
	}
}
