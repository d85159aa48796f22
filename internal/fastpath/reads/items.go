// Package reads answers gets, lists and watches from bytes that have been encoded before, or from the stored bytes
// themselves.
//
// It holds one answerer per kind and version (Kind), the writer that puts items into lists (Lists and ListConfig), and
// the output that watches write their events to. It does not negotiate or decide: package fastpath does, and sends
// only plain requests here. A request that turns out to need more is declined and goes to upstream's handlers; the
// response is the same byte for byte either way.
package reads

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// newBuffers returns a pool of buffers, *[]byte, in which pieces of lists are put together.
func newBuffers() *sync.Pool {
	return &sync.Pool{New: func() any {
		buffer := make([]byte, 0, convert.ListPiece)
		return &buffer
	}}
}

// Lists lets the next handler, upstream's, answer lists without their items and fills the items in, as Kind.Answer
// does on the route Items. It also lets watches as JSON share the encoded events. config returns how a resource is
// listed; if it returns nil, upstream answers the lists and watches of the resource alone.
func Lists(next http.Handler, config func(*request.RequestInfo) *ListConfig) http.Handler {
	buffers := newBuffers()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Subresource != "" {
			next.ServeHTTP(w, r)
			return
		}
		c := config(info)
		switch {
		case c == nil:
		case info.Verb == "watch":
			if as, format, ok := negotiateList(r, c.Serializer); ok && as == nil && format == plainJSON {
				r = r.WithContext(registry.WithRememberedEvents(r.Context()))
			}
		case info.Verb == "list" && !fastpath.RecordsAnswers(r.Context()):
			if fill(w, r, info, next, c, buffers, func() {}) == "" {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// fill answers a list on the route Items.
func (r *Kind) fill(w http.ResponseWriter, req *http.Request, d *fastpath.Decision, next http.Handler) fastpath.Reason {
	config := r.listConfig()
	if config == nil {
		return fastpath.OddList
	}
	filled := false
	reason := fill(w, req, d.Info, next, config, r.buffers, func() {
		filled = true
		d.CountAnswer()
	})
	if reason == "" && !filled {
		d.Decline(fastpath.NoAnswer)
	}
	return reason
}

// fill lets the next handler, upstream's, answer a list without its items and then inserts the items one by one, as
// the storage remembers them or encoded one object after the other. Upstream would copy each item twice and encode
// it. So a list needs hardly any memory, however long it is. This works for JSON (also indented), YAML and protobuf
// in all versions, and for tables and metadata lists of resources with a table convertor. A list in another form is
// declined.
//
// beforeItems is called before the items are written. It is not called if the response has no items, for example if it is
// an error.
func fill(
	w http.ResponseWriter,
	r *http.Request,
	info *request.RequestInfo,
	next http.Handler,
	config *ListConfig,
	buffers *sync.Pool,
	beforeItems func(),
) fastpath.Reason {
	as, format, ok := negotiateList(r, config.Serializer)
	if !ok {
		return fastpath.OddMedia
	}
	given := config.itemsAs(r, as, format)
	if given == nil {
		return fastpath.OddMedia
	}
	defer func() { verbatim.Close(given.Items) }()
	list := &listWriter{
		ResponseWriter: w,
		req:            r,
		serializer:     config.Serializer,
		info:           info,
		items:          given,
		beforeItems:    beforeItems,
		buffers:        buffers,
		format:         format,
	}
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(list), r.WithContext(registry.WithEncodedItems(r.Context(), given)))
	list.end()
	return ""
}

// ListConfig describes how the objects of a resource are listed.
type ListConfig struct {
	Serializer runtime.NegotiatedSerializer
	// Encoding is the encoding of the objects in the version of the request. Nil leaves the choice to the storage.
	Encoding *verbatim.Encoding
	// RowEncoding is the encoding of the objects in the version in which they are stored. All responses but those in Encoding are
	// made from it. If it is nil, upstream answers them.
	RowEncoding *verbatim.Encoding
	// Item appends an object as an item of a list, as JSON in the version of the request, and keeps the encoded item
	// if remember is true. If it is nil, upstream encodes the items.
	Item func(to []byte, object runtime.Object, remember bool) ([]byte, error)
	// Message writes an object with its kind, as protobuf in the version of the request. It is nil if the version has
	// no protobuf.
	Message func(to io.Writer, object runtime.Object, memory runtime.MemoryAllocator) error
	// MessageSizing holds sizes of objects as protobuf, PartialSizing sizes of their metadata as protobuf.
	MessageSizing, PartialSizing verbatim.Sizing
	// Converted reports whether stored objects are converted before tables and metadata are made from them.
	Converted bool
	// Table makes the rows of tables. If it is nil, upstream answers tables.
	Table rest.TableConvertor
}

// rememberedBytes limits the encoded bytes of one list that are kept for later lists. A longer list would evict
// everything else that is kept, and most of its own items before they are used again.
const rememberedBytes = 16 << 20

// itemsAs returns how the storage passes on the items of a list in a format. It returns nil if upstream has to answer
// the list.
func (l *ListConfig) itemsAs(r *http.Request, as *schema.GroupVersionKind, format format) *registry.EncodedItems {
	switch {
	case as != nil && l.RowEncoding == nil:
		return nil
	case as != nil && format.isProtobuf():
		if row := messagesAs(as, format); row != nil {
			return &registry.EncodedItems{Encoding: l.RowEncoding, Maker: &verbatim.Maker{Row: row, Sizing: l.PartialSizing}}
		}
		return nil
	case as != nil:
		row := rowsAs(r, as, l.Table)
		if row == nil {
			return nil
		}
		if l.Converted {
			row = withoutMetadata(row)
		}
		return &registry.EncodedItems{Encoding: l.RowEncoding, Maker: &verbatim.Maker{Row: row}}
	case format == asProtobuf:
		if l.Message == nil || l.RowEncoding == nil {
			return nil
		}
		return &registry.EncodedItems{Encoding: l.RowEncoding, Maker: &verbatim.Maker{Row: l.messages(), Sizing: l.MessageSizing}}
	case l.Encoding == l.RowEncoding || l.Item == nil:
		return &registry.EncodedItems{Encoding: l.Encoding}
	}
	return &registry.EncodedItems{Encoding: l.RowEncoding, Maker: &verbatim.Maker{Row: l.objects(), Eager: true}}
}

// objects returns a verbatim.Row that encodes items in a version other than the stored version.
func (l *ListConfig) objects() verbatim.Row {
	remembered := 0
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
		read, err := object()
		if err != nil {
			return nil, err
		}
		begin := len(to)
		if to, err = l.Item(to, read, remembered < rememberedBytes); err != nil {
			return nil, err
		}
		remembered += len(to) - begin
		return to, nil
	}
}

var errNoMessage = errors.New("an object is not encoded as protobuf of Kubernetes")

// messages returns a verbatim.Row that encodes items as protobuf.
func (l *ListConfig) messages() verbatim.Row {
	var whole bytes.Buffer
	var memory runtime.Allocator
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Fragment) ([]byte, error) {
		read, err := object()
		if err != nil {
			return nil, err
		}
		whole.Reset()
		if err = l.Message(&whole, convert.Shallow(read), &memory); err != nil {
			return nil, err
		}
		to, ok := appendMessage(to, whole.Bytes())
		if !ok {
			return nil, errNoMessage
		}
		return to, nil
	}
}

// negotiateList returns the certain outcome of upstream's negotiation: the kind that objects are converted to, nil for none,
// and the format. ok is false if the outcome is uncertain, or if upstream answers with an error.
func negotiateList(req *http.Request, codecs runtime.NegotiatedSerializer) (as *schema.GroupVersionKind, in format, ok bool) {
	if strings.Contains(req.Header.Get("Accept"), "cbor") { // needs a feature gate
		return nil, 0, false
	}
	media, info, err := negotiation.NegotiateOutputMediaType(req, codecs, anyEndpoint{})
	if err != nil {
		return nil, 0, false
	}
	if as = media.Convert; as != nil {
		// Converted objects have codecs of their own, which encode protobuf even for kinds without protobuf.
		if media, info, err = negotiation.NegotiateOutputMediaType(req, metainternalversionscheme.Codecs, anyEndpoint{}); err != nil {
			return nil, 0, false
		}
	}
	pretty := info.Serializer != media.Accepted.Serializer
	if pretty && info.Serializer != media.Accepted.PrettySerializer ||
		media.Stream != "" || media.UseServerVersion != "" || media.Profile != "" || media.Export || len(media.Unrecognized) > 0 {
		return nil, 0, false
	}
	in, ok = formatOf(info.MediaType, pretty)
	if in == asProtobuf && as != nil && as.GroupVersion() == metav1beta1.SchemeGroupVersion {
		in = asBetaProtobuf
	}
	return as, in, ok
}

// anyEndpoint allows all that any endpoint allows, so that the negotiation ignores only parts of the header that every
// endpoint ignores.
type anyEndpoint struct{}

func (anyEndpoint) AllowsMediaTypeTransform(string, string, *schema.GroupVersionKind) bool {
	return true
}
func (anyEndpoint) AllowsServerVersion(string) bool { return true }
func (anyEndpoint) AllowsStreamSchema(string) bool  { return true }

// listWriter inserts the items into a list without items. It passes on all other responses.
type listWriter struct {
	http.ResponseWriter
	req         *http.Request
	info        *request.RequestInfo
	serializer  runtime.NegotiatedSerializer
	items       *registry.EncodedItems
	beforeItems func()     // called before the items are written
	buffers     *sync.Pool // newBuffers
	format      format
	incomplete  bool   // the response is a list whose items are missing
	list        []byte // the list without its items, as far as it is written
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *listWriter) WriteHeader(code int) {
	if w.incomplete = code == http.StatusOK && w.items.Items != nil; !w.incomplete {
		w.ResponseWriter.WriteHeader(code)
	}
}

var errNoItems = errors.New("the list has no field for items")

// Write implements http.ResponseWriter, except that it returns the number of bytes written including the items:
// upstream adds these numbers up in its metrics of response sizes.
func (w *listWriter) Write(p []byte) (int, error) {
	if !w.incomplete {
		return w.ResponseWriter.Write(p)
	}
	w.list = append(w.list, p...)
	if !w.format.isWhole(w.list) {
		return 0, nil
	}
	list := encodedList{
		req: w.req, info: w.info, serializer: w.serializer, buffers: w.buffers, format: w.format, mayCompress: true,
		writer: &countingWriter{ResponseWriter: w.ResponseWriter}, items: w.items.Items, head: w.list,
	}
	if list.items.Len() > 0 {
		var ok bool
		if list.items, list.head, list.tail, ok = w.format.fill(w.list, list.items); !ok {
			return 0, errNoItems
		}
	}
	w.incomplete = false
	w.beforeItems()
	list.write()
	return list.writer.size, nil
}

// end answers with an error if a list has begun but the place for its items was not found: the response must not look
// like an empty list.
func (w *listWriter) end() {
	if w.incomplete {
		klog.FromContext(w.req.Context()).Error(errNoItems, "A list was not answered", "path", w.info.Path)
		w.ResponseWriter.WriteHeader(http.StatusInternalServerError)
	}
}

// encodedList is an encoded list. It implements runtime.Encoder, so that upstream compresses and writes it like any
// object.
type encodedList struct {
	req         *http.Request
	info        *request.RequestInfo
	serializer  runtime.NegotiatedSerializer
	buffers     *sync.Pool // newBuffers
	format      format
	mayCompress bool
	writer      *countingWriter
	items       verbatim.Items
	head        []byte
	tail        []byte // behind the items; if there are no items, head is the whole list
}

// write answers the request with the list.
func (f encodedList) write() {
	if c := push.ConnectionOf(f.req); c != nil { // a list takes several frames, and each frame two TLS records
		c.Hold()
		defer c.Release()
	}
	responsewriters.SerializeObject(f.format.mediaType(), f, f.writer, f.req, http.StatusOK, nil)
}

// Encode implements runtime.Encoder. If an item fails before the response has begun, upstream encodes the error in
// place of the list. A list that has begun is cut off, so that no client takes it for a complete one.
func (f encodedList) Encode(object runtime.Object, w io.Writer) error {
	if status, ok := object.(*metav1.Status); ok {
		return f.encodeStatus(status, w)
	}
	if f.items.Len() == 0 {
		_, err := w.Write(append(f.head, f.tail...))
		return err
	}
	to := &errorWriter{Writer: w}
	buffer := f.buffers.Get().(*[]byte)
	err := convert.WriteList(to, f.head, f.items, f.format.separator(), f.tail, *buffer, f.mayCompress)
	if err == nil { // after a failed write HTTP/2 may still read the buffer
		f.buffers.Put(buffer)
	}
	if err != nil && to.err == nil && f.writer.wroteHeader {
		klog.FromContext(f.req.Context()).Error(err, "A list was cut off", "path", f.info.Path)
		panic(http.ErrAbortHandler)
	}
	return err
}

// errorWriter records the error of its last write.
type errorWriter struct {
	io.Writer
	err error
}

func (w *errorWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = err
	return n, err
}

func (f encodedList) encodeStatus(status *metav1.Status, to io.Writer) error {
	codecs := f.serializer
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), f.format.mediaType())
	if !ok { // converted objects have codecs of their own
		codecs = metainternalversionscheme.Codecs
		if info, ok = runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), f.format.mediaType()); !ok {
			return errNoItems
		}
	}
	serializer := info.Serializer
	if f.format == prettyJSON {
		serializer = info.PrettySerializer
	}
	return codecs.EncoderForVersion(serializer, schema.GroupVersion{Group: f.info.APIGroup, Version: f.info.APIVersion}).Encode(status, to)
}

// Identifier implements runtime.Encoder.
func (f encodedList) Identifier() runtime.Identifier { return "encodedItems" }

type countingWriter struct {
	http.ResponseWriter
	wroteHeader bool
	code        int
	size        int
}

func (w *countingWriter) WriteHeader(code int) {
	w.wroteHeader, w.code = true, code
	w.ResponseWriter.WriteHeader(code)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}
