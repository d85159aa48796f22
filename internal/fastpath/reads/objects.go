package reads

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/stacks"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// Reader holds the state that all kinds of a server share for answering reads.
type Reader struct {
	minWatchTime time.Duration
	kinds        map[schema.GroupVersionResource]*Kind
	pools        *pools
	buffers      *sync.Pool // newBuffers
	stacks       *stacks.Pool
	stopper      *watchStopper
}

// New returns a reader for the kinds of a server. If the client sets no timeout, a watch lasts at least minWatchTime and at
// most twice as long.
func New(minWatchTime time.Duration) *Reader {
	return &Reader{
		minWatchTime: minWatchTime,
		kinds:        map[schema.GroupVersionResource]*Kind{},
		pools:        newPools(),
		buffers:      newBuffers(),
		stacks:       stacks.New(),
		stopper:      &watchStopper{},
	}
}

// Kind answers reads of the main endpoint of a kind in one version. It implements fastpath.Answerer.
type Kind struct {
	*Reader
	schema.GroupVersionResource
	storage   rest.Getter
	encoded   registry.EncodedGetter // nil if objects have to be encoded
	lister    registry.EncodedLister // nil if upstream answers lists
	listBegin func() []byte          // lists as JSON up to their metadata; nil if they are laid out differently
	// listsMessages reports whether lists are encoded as protobuf with their items at the end.
	listsMessages func() bool
	serializer    runtime.NegotiatedSerializer
	json          *mediaEncoder
	protobuf      *mediaEncoder // nil if the version has no protobuf
	// stored is the version in which the objects are stored.
	stored schema.GroupVersionResource
	// converted reports whether the hub type differs from the stored type: a conversion may have changed every field, metadata
	// as well.
	converted bool
	// table is nil if rows depend on each other.
	table     rest.TableConvertor
	kind      schema.GroupVersionKind
	convertor runtime.ObjectConvertor
	// messageSizing and partialSizing are the fields of ListConfig.
	messageSizing, partialSizing verbatim.Sizing
}

var _ fastpath.Answerer = (*Kind)(nil)

// mediaEncoder encodes objects, and events of watches, in a media type.
type mediaEncoder struct {
	mediaType string
	*convert.ObjectEncoder
	events *eventEncoder // nil if upstream answers watches
}

// Kind returns the answerer for a kind in a version. It returns nil if the storage is no rest.Getter. It must not be
// called once the server answers requests.
func (d *Reader) Kind(
	k *define.Kind,
	v *define.Version,
	storage rest.Storage,
	serializer runtime.NegotiatedSerializer,
	machinery *convert.Machinery,
) *Kind {
	getter, ok := storage.(rest.Getter)
	if !ok {
		return nil
	}
	r := &Kind{
		Reader:               d,
		GroupVersionResource: v.GroupVersion.WithResource(k.Resource),
		storage:              getter,
		serializer:           serializer,
		kind:                 v.GroupVersion.WithKind(k.Name),
		convertor:            machinery.Documents(),
		messageSizing:        verbatim.NewSizing(),
		partialSizing:        verbatim.NewSizing(),
		stored:               k.Stored().GroupVersion.WithResource(k.Resource),
		converted:            k.Stored().Type != k.Hub().Type,
	}
	if k.RowOrder == nil {
		r.table, _ = storage.(rest.TableConvertor)
	}
	r.encoded, _ = storage.(registry.EncodedGetter)
	r.lister, _ = storage.(registry.EncodedLister)
	as := func(mediaType string) *mediaEncoder {
		info, ok := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), mediaType)
		if !ok {
			return nil
		}
		return &mediaEncoder{
			info.MediaType,
			machinery.ObjectEncoder(serializer.EncoderForVersion(info.Serializer, v.GroupVersion), k, v),
			newEventEncoder(serializer, info, v.GroupVersion),
		}
	}
	r.json = as(runtime.ContentTypeJSON)
	r.listBegin = sync.OnceValue(func() []byte { return beginOfLists(k.Hub().NewList(), serializer, v.GroupVersion) })
	r.listsMessages = sync.OnceValue(func() bool { return endsWithItems(k.Hub().NewList(), serializer, v.GroupVersion, k.Hub().New()) })
	if v.SpeaksProtobuf() {
		r.protobuf = as(runtime.ContentTypeProtobuf)
	}
	d.kinds[r.GroupVersionResource] = r
	return r
}

// Encoding returns the encoding in which stored objects of a resource are served as JSON without being encoded. It returns
// nil if they always have to be encoded.
func (d *Reader) Encoding(resource schema.GroupVersionResource) *verbatim.Encoding {
	if r := d.kinds[resource]; r != nil && r.json != nil {
		return r.json.Encoding()
	}
	return nil
}

// Answer implements fastpath.Answerer.
func (r *Kind) Answer(w http.ResponseWriter, req *http.Request, d *fastpath.Decision, next http.Handler) fastpath.Reason {
	switch d.Route {
	case fastpath.Get:
		return r.get(w, req, d)
	case fastpath.Watch:
		return r.watch(w, req, d)
	case fastpath.List:
		if r.list(w, req, d) == "" {
			return ""
		}
		d.Route = fastpath.Items
	}
	return r.fill(w, req, d, next)
}

// encoder returns the encoder of a media type.
func (r *Kind) encoder(media fastpath.Media) *mediaEncoder {
	if media == fastpath.Protobuf {
		return r.protobuf
	}
	return r.json
}

// listConfig returns how the objects are listed. It returns nil if upstream answers the lists.
func (r *Kind) listConfig() *ListConfig {
	if r.json.Encoding() == nil {
		return nil
	}
	config := &ListConfig{
		Serializer:    r.serializer,
		Encoding:      r.json.Encoding(),
		RowEncoding:   r.Encoding(r.stored),
		Item:          r.json.AppendItem,
		Converted:     r.converted,
		Table:         r.table,
		MessageSizing: r.messageSizing,
		PartialSizing: r.partialSizing,
	}
	if config.RowEncoding == nil { // the stored version is not served
		config.RowEncoding = config.Encoding
	}
	if r.protobuf != nil && r.listsMessages() {
		config.Message = r.protobuf.WriteObject
	}
	return config
}

// get answers a get of one object. It declines before it writes anything.
func (r *Kind) get(w http.ResponseWriter, req *http.Request, d *fastpath.Decision) fastpath.Reason {
	encoder := r.encoder(d.Media)
	ctx := request.WithNamespace(req.Context(), d.Info.Namespace)
	if stored := r.storedBytes(ctx, d.Info.Name, encoder); !stored.IsZero() {
		buffer := r.pools.buffer()
		*buffer = stored.AppendWhole(*buffer)
		// If the write failed, the connection may still read the buffer.
		if encoder.write(w, req, d, *buffer) == nil {
			r.pools.release(buffer)
		}
		return ""
	}
	var body []byte
	// Decoding an object would grow the stack below all filters, which copies their frames.
	r.stacks.Do(func() { body = r.body(ctx, d.Info.Name, encoder) })
	switch {
	case body == nil:
		return fastpath.NoAnswer
	case len(body) > fastpath.CompressedSize && strings.Contains(req.Header.Get("Accept-Encoding"), "gzip"):
		return fastpath.Compressed
	}
	// A failed write means that the client has gone: that is no error of the server, and there is no way left to
	// report one.
	_ = encoder.write(w, req, d, body)
	return ""
}

// write writes the response to a get.
func (f *mediaEncoder) write(w http.ResponseWriter, r *http.Request, d *fastpath.Decision, body []byte) error {
	d.CountAnswer()
	w.Header().Set("Content-Type", f.mediaType)
	w.WriteHeader(http.StatusOK)
	n, err := w.Write(body)
	d.Monitor(r, http.StatusOK, n)
	return err
}

// storedBytes returns the bytes of an object that is small and stored exactly as it is served. It returns a zero Fragment
// if the object has to be encoded.
func (r *Kind) storedBytes(ctx context.Context, name string, encoder *mediaEncoder) verbatim.Fragment {
	as := encoder.Encoding()
	if as == nil || r.encoded == nil {
		return verbatim.Fragment{}
	}
	return r.encoded.GetEncoded(ctx, name, as)
}

// body returns the encoded object. It returns nil for any error, which upstream reports.
func (r *Kind) body(ctx context.Context, name string, encoder *mediaEncoder) []byte {
	object, err := r.storage.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil
	}
	body, err := encoder.Object(object)
	if err != nil {
		return nil
	}
	return body
}
