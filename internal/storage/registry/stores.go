package registry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/custom"
	"github.com/annexapi/annex/internal/storage/decorator"
	"github.com/annexapi/annex/internal/storage/past"
	"github.com/annexapi/annex/store"
)

// Stores opens the storage of resources, each in its backend. It is the only link between genericregistry and the
// storage.
type Stores struct {
	// Transformers encrypt stored objects. They return nil for a resource that is stored unencrypted; nil means no
	// encryption at all. The field must be set before a resource is opened.
	Transformers value.ResourceTransformers
	// MediaType returns the media type in which objects of a resource are stored. Nil, or an empty result, means JSON.
	// The field must be set before a resource is opened, too.
	MediaType func(schema.GroupResource) string
	// Retention returns how long the history of a resource is kept. Nil keeps none. The field must be set before a resource is
	// opened, too.
	Retention func(schema.GroupResource) store.Retention
	// Hooks are the admission hooks of all kinds. The field must be set before a kind with hooks of AdmitCreate or
	// AdmitUpdate is opened.
	Hooks *admit.Hooks

	backend   func(schema.GroupResource) store.Backend
	machinery *convert.Machinery
	stored    map[schema.GroupResource]schema.GroupVersionKind
	decoded   map[schema.GroupResource]map[schema.GroupVersionKind]reflect.Type
	under     map[schema.GroupResource]schema.GroupResource
	opened    map[schema.GroupResource]storage.Interface
	ruled     map[schema.GroupResource]*define.Kind // the kinds with hooks of AdmitCreate or AdmitUpdate

	mu sync.RWMutex
	// others has the prefixes of the resources that are no kinds of the definition and have been opened. Custom resources are opened
	// while the server runs.
	others map[string]bool
}

var _ generic.RESTOptionsGetter = (*Stores)(nil)

// NewStores returns the storage of the kinds of a definition, and of extra resources with the kinds that they are
// stored as. backend returns the backend of a resource.
func NewStores(
	backend func(schema.GroupResource) store.Backend,
	machinery *convert.Machinery,
	server *define.Server,
	extra map[schema.GroupResource]schema.GroupVersionKind,
) *Stores {
	s := &Stores{
		backend: backend, machinery: machinery,
		stored:  map[schema.GroupResource]schema.GroupVersionKind{},
		decoded: map[schema.GroupResource]map[schema.GroupVersionKind]reflect.Type{},
		under:   map[schema.GroupResource]schema.GroupResource{},
		opened:  map[schema.GroupResource]storage.Interface{},
		ruled:   map[schema.GroupResource]*define.Kind{},
		others:  map[string]bool{},
	}
	for resource, kind := range extra {
		s.stored[resource] = kind
		s.decoded[resource] = map[schema.GroupVersionKind]reflect.Type{kind: machinery.Scheme.AllKnownTypes()[kind]}
	}
	for _, k := range server.Kinds() {
		s.under[k.GroupResource()] = k.Primary().StoredUnder
		if k.AliasOf == nil {
			s.stored[k.GroupResource()] = k.Stored().GroupVersionKind()
			if len(k.CreateAdmissions) > 0 || len(k.UpdateAdmissions) > 0 {
				s.ruled[k.GroupResource()] = k
			}
			s.decoded[k.GroupResource()] = map[schema.GroupVersionKind]reflect.Type{}
			for _, v := range k.AllVersions() {
				s.decoded[k.GroupResource()][v.GroupVersionKind()] = v.Type
			}
		}
	}
	return s
}

// GetRESTOptions describes the storage of one resource. The API machinery also calls it, without an example object, for
// resources that are not stored or that store the objects of another resource, to compare their prefixes.
func (s *Stores) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	options := generic.RESTOptions{
		ResourcePrefix:          s.prefix(resource),
		Decorator:               decorator.New(s.open),
		DeleteCollectionWorkers: 1,
		CountMetricPollPeriod:   time.Minute,
	}
	kind, ok := s.stored[resource]
	if !ok {
		return options, nil
	}
	version := kind.GroupVersion()
	config := storagebackend.Config{
		Codec:           s.machinery.StorageCodec(version, s.mediaType(resource)),
		EncodeVersioner: runtime.NewMultiGroupVersioner(version, schema.GroupKind{Group: version.Group}),
	}
	if s.Transformers != nil {
		config.Transformer = s.Transformers.TransformerForResource(resource)
	}
	options.StorageConfig = config.ForResource(resource)
	return options, nil
}

// Custom returns the storage of resources that are not kinds of the definition. They may be opened and closed while the
// server runs; the destroy function of an opened storage closes it. The codec determines the stored form of objects.
func (s *Stores) Custom(codec runtime.Codec) generic.RESTOptionsGetter {
	return customStorage{s, codec}
}

type customStorage struct {
	stores *Stores
	codec  runtime.Codec
}

func (c customStorage) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config, open := storagebackend.Config{Codec: c.codec}, c.stores.openCustom
	if c.codec == unstructured.UnstructuredJSONScheme { // upstream builds the codec of each definition on it
		config.Codec = custom.Below(c.codec)
		open = func(opened store.Resource) (storage.Interface, factory.DestroyFunc, error) {
			opened.Codec = custom.Above(opened.Codec, opened.New().GetObjectKind().GroupVersionKind())
			return c.stores.openCustom(opened)
		}
	}
	if c.stores.Transformers != nil {
		config.Transformer = c.stores.Transformers.TransformerForResource(resource)
	}
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		ResourcePrefix:          KeyPrefix(resource),
		Decorator:               decorator.New(open),
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		CountMetricPollPeriod:   time.Minute,
	}, nil
}

// Foreign returns the storage of kinds whose types and codecs are another project's. codec returns the codec of a
// resource's stored objects and the version that it encodes, of which discovery has a hash; it may be called for resources without
// storage, too.
func (s *Stores) Foreign(codec func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)) generic.RESTOptionsGetter {
	return foreignStorage{s, codec}
}

type foreignStorage struct {
	stores *Stores
	codec  func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (f foreignStorage) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, stored, err := f.codec(resource)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", resource, err)
	}
	options, err := f.stores.Custom(codec).GetRESTOptions(resource, nil)
	if err != nil {
		return options, err
	}
	options.StorageConfig.EncodeVersioner = stored
	options.Decorator = decorator.New(f.stores.openForeign)
	return options, nil
}

// prefix returns the key prefix of a resource's objects.
func (s *Stores) prefix(resource schema.GroupResource) string {
	if under, ok := s.under[resource]; ok {
		resource = under
	}
	return KeyPrefix(resource)
}

// KeyPrefix returns the key prefix of objects that are stored under a resource.
func KeyPrefix(resource schema.GroupResource) string {
	prefix := "/" + resource.Resource
	if resource.Group != "" {
		prefix = "/" + resource.Group + prefix
	}
	return prefix
}

// Form returns the form in which objects of a resource are written to the storage.
func (s *Stores) Form(resource schema.GroupResource) convert.Form {
	form := convert.Form{GroupVersionKind: s.stored[resource], MediaType: s.mediaType(resource)}
	if form.MediaType == "" {
		form.MediaType = runtime.ContentTypeJSON
	}
	return form
}

// Decodes reports whether objects of a resource that are stored in a form can be decoded.
func (s *Stores) Decodes(resource schema.GroupResource, form convert.Form) bool {
	t, ok := s.decoded[resource][form.GroupVersionKind]
	return ok && (form.MediaType == runtime.ContentTypeJSON || define.IsProtobuf(t))
}

// StoredResources returns the resources that objects may be stored of, sorted by name.
func (s *Stores) StoredResources() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(s.stored), func(a, b schema.GroupResource) int {
		return strings.Compare(a.String(), b.String())
	})
}

// StoredValues yields the stored values of a resource. An error ends the sequence. It yields nothing for a backend that
// is not a store.ValueReader.
func (s *Stores) StoredValues(ctx context.Context, resource schema.GroupResource) iter.Seq2[store.Value, error] {
	if reader, ok := s.backend(resource).(store.ValueReader); ok {
		return reader.Values(ctx, s.prefix(resource))
	}
	return func(func(store.Value, error) bool) {}
}

// Misplaced returns the resources that a kind is served as but not stored under, and that still have objects under
// their own prefix, where nothing reads them. empty reports whether, in this case, there are no objects under the
// kind's actual prefix.
func (s *Stores) Misplaced(ctx context.Context, k *define.Kind) (places []schema.GroupResource, empty bool, err error) {
	reader, ok := s.backend(k.GroupResource()).(store.ValueReader)
	if !ok {
		return nil, false, nil
	}
	has := func(place schema.GroupResource) bool {
		for _, e := range reader.Values(ctx, KeyPrefix(place)) {
			err = errors.Join(err, e)
			return true
		}
		return false
	}
	for _, served := range append([]*define.Kind{k}, k.Aliases...) {
		if place := served.GroupResource(); place != k.StoredUnder && has(place) {
			places = append(places, place)
		}
	}
	empty = len(places) > 0 && !has(k.StoredUnder)
	return places, empty, err
}

func (s *Stores) open(resource store.Resource) (storage.Interface, factory.DestroyFunc, error) {
	opened, err := s.view(resource)
	if err != nil {
		return nil, nil, err
	}
	s.opened[resource.Resource] = opened
	below := opened
	if k, ok := s.ruled[resource.Resource]; ok {
		creates, updates := s.Hooks.Beside(k.GroupResource())
		if opened, err = newConditionalStorage(opened, rules{k, resource.Prefix, creates, updates}); err != nil {
			return nil, nil, err
		}
	}
	// The backend is closed as a whole, after the last request.
	return past.Answering(ordered.Answering(wholeLists{withTypedReads(opened, below, s.machinery.Items())}, below), below), func() {}, nil
}

func (s *Stores) openCustom(resource store.Resource) (storage.Interface, factory.DestroyFunc, error) {
	x := indexesOf(resource.New(), resource.Attributes) // upstream declares none
	resource.Triggers, resource.Indexers = x.triggers, x.indexers
	opened, err := s.view(resource)
	if err != nil {
		return nil, nil, err
	}
	view, ok := opened.(store.Closer)
	if !ok {
		return nil, nil, fmt.Errorf("open storage of %s: %T cannot be closed alone", resource.Resource, opened)
	}
	inner := opened
	s.addOther(resource.Prefix)
	opened = encodedLists(opened, resource.New().GetObjectKind().GroupVersionKind(), s.machinery.Items())
	return past.Answering(ordered.Answering(wholeLists{indexedSelectors{opened, x.fields}}, inner), inner), view.Close, nil
}

func (s *Stores) openForeign(resource store.Resource) (storage.Interface, factory.DestroyFunc, error) {
	opened, err := s.view(resource)
	if err != nil {
		return nil, nil, err
	}
	s.addOther(resource.Prefix)
	return past.Answering(ordered.Answering(wholeLists{opened}, opened), opened), func() {}, nil
}

// HasOther reports whether prefix is that of a resource that Custom or Foreign has opened. It may be called concurrently.
func (s *Stores) HasOther(prefix string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.others[prefix]
}

func (s *Stores) addOther(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others[prefix] = true
}

func (s *Stores) view(resource store.Resource) (storage.Interface, error) {
	if s.Retention != nil {
		retention := s.Retention(resource.Resource)
		resource.Retention = &retention
	}
	opened, err := s.backend(resource.Resource).Open(resource)
	if err != nil {
		return nil, fmt.Errorf("open storage of %s: %w", resource.Resource, err)
	}
	return opened, nil
}

// Opened returns the storage of a resource's kind, and an error if it has not been opened. It must not be called while
// another resource is being opened.
func (s *Stores) Opened(resource schema.GroupResource) (storage.Interface, error) {
	opened, ok := s.opened[resource]
	if !ok {
		return nil, fmt.Errorf("the storage of %s is not open", resource)
	}
	return opened, nil
}

func (s *Stores) mediaType(resource schema.GroupResource) string {
	if s.MediaType == nil {
		return ""
	}
	return s.MediaType(resource)
}
