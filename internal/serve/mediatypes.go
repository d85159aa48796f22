package serve

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/coreapi"
	"github.com/annexapi/annex/internal/define"
)

// mediaTypes are what objects of resources are encoded in when they are stored.
type mediaTypes map[schema.GroupResource]string

// mediaTypes finds what resources are stored in, each in its place: what the operator
// says, else what the developer says, else what suits the storage. The error names
// every mistake in that.
func (o *Options) mediaTypes(definition *define.Server, at placement) (mediaTypes, error) {
	all, types := mediaTypes{}, map[schema.GroupResource]reflect.Type{}
	if in, ok := at[coreapi.Resource]; ok {
		types[coreapi.Resource] = reflect.TypeFor[corev1.Namespace]()
		all[coreapi.Resource] = suitable(in, types[coreapi.Resource])
	}
	because := map[schema.GroupResource]string{}
	for _, k := range definition.Kinds() {
		if k.SharedWith != nil || k.Own != nil {
			continue
		}
		resource, t := k.GroupResource(), k.Stored().Type
		if k.Source != nil {
			all[resource] = suitable("memory", t) // its mirror
			continue
		}
		types[resource] = t
		all[resource] = suitable(at[resource], t)
		if k.StoredMediaType != "" {
			all[resource] = k.StoredMediaType
			because[resource] = fmt.Sprintf("StoredMediaType(%q) of kind %s", k.StoredMediaType, k.Name)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.StorageMediaTypeOf)) {
		mediaType, resource := o.StorageMediaTypeOf[name], schema.ParseGroupResource(name)
		flag := fmt.Sprintf("--storage-media-type-of %s=%s", name, mediaType)
		if owner := definition.Owner(resource); owner != resource {
			errs = append(errs, fmt.Errorf("%s: its objects are those of %s: name that", flag, owner))
			continue
		}
		if _, ok := types[resource]; !ok {
			errs = append(errs, fmt.Errorf("%s: this server stores no such resource; it has %s", flag, at.list()))
			continue
		}
		if err := define.CheckStoredMediaType(mediaType, types[resource]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
			continue
		}
		all[resource], because[resource] = mediaType, flag
	}
	for _, resource := range at.sorted() {
		if at[resource] == "files" && all[resource] != runtime.ContentTypeJSON {
			errs = append(errs, fmt.Errorf("%s: %s are kept in files, which people read and edit as YAML, and so hold nothing but %s: add --storage-media-type-of %s=%[3]s", because[resource], resource, runtime.ContentTypeJSON, resource))
		}
	}
	return all, errors.Join(errs...)
}

// suitable is what objects of a Go type are stored in where nobody says otherwise.
// A create takes about a third less processor time as protobuf. Etcd is read by others,
// too, and files by people.
func suitable(storage string, t reflect.Type) string {
	if (storage == "embedded" || storage == "memory") && define.IsProtobuf(t) {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// StoredMediaTypes returns what a server with these options encodes the objects of
// resources in when it stores them.
func StoredMediaTypes(definition *define.Server, options Options) (map[schema.GroupResource]string, error) {
	if err := options.Complete(definition); err != nil {
		return nil, err
	}
	at, err := options.place(definition)
	if err != nil {
		return nil, err
	}
	return options.mediaTypes(definition, at)
}
