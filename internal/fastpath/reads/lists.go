// Package reads answers reads with what has been encoded before. Whatever else there may be to a request, it leaves to
// upstream's handlers, and what a client gets is the same, byte for byte.
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

// newRooms returns rooms, *[]byte, to put pieces of lists together in.
func newRooms() *sync.Pool {
	return &sync.Pool{New: func() any {
		room := make([]byte, 0, convert.ListPiece)
		return &room
	}}
}

// Lists lets the next handler, which is upstream's, answer lists of resources without their items, as Kind.Answer does on the
// route Items, and share the encoded events of watches as JSON. listed returns how a resource is listed; nil leaves its lists and
// watches to upstream.
func Lists(next http.Handler, listed func(*request.RequestInfo) *Listed) http.Handler {
	rooms := newRooms()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Subresource != "" {
			next.ServeHTTP(w, r)
			return
		}
		l := listed(info)
		switch {
		case l == nil:
		case info.Verb == "watch":
			if as, format, ok := wanted(r, l.Serializer); ok && as == nil && format == plainJSON {
				r = r.WithContext(registry.WithRememberedEvents(r.Context()))
			}
		case info.Verb == "list" && !fastpath.RecordsAnswers(r.Context()):
			if fill(w, r, info, next, l, rooms, func() {}) == "" {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// fill lets upstream's handler answer a list on the route Items.
func (r *Kind) fill(w http.ResponseWriter, req *http.Request, d *fastpath.Decision, next http.Handler) fastpath.Reason {
	listed := r.listed()
	if listed == nil {
		return fastpath.OddList
	}
	filled := false
	reason := fill(w, req, d.Info, next, listed, r.rooms, func() {
		filled = true
		d.Answered()
	})
	if reason == "" && !filled {
		d.Decline(fastpath.NoAnswer)
	}
	return reason
}

// fill lets the next handler, which is upstream's, answer a list without its items, which cost it two copies and an encoding each, and
// puts these in its answer one by one: as the storage remembers them, or as they are made
// of one object after the other. So a list takes hardly any memory, however long it is. That holds for JSON, also if it is
// indented, YAML and protobuf, in all versions, and for tables and lists of metadata of resources with a table
// convertor. A list in another form is declined.
//
// filling is called before the items are written; it is not called if the answer is none with items, an error for instance.
func fill(
	w http.ResponseWriter,
	r *http.Request,
	info *request.RequestInfo,
	next http.Handler,
	listed *Listed,
	rooms *sync.Pool,
	filling func(),
) fastpath.Reason {
	as, format, ok := wanted(r, listed.Serializer)
	if !ok {
		return fastpath.OddMedia
	}
	given := listed.itemsAs(r, as, format)
	if given == nil {
		return fastpath.OddMedia
	}
	defer func() { verbatim.Close(given.Items) }()
	list := &listWriter{
		ResponseWriter: w,
		req:            r,
		serializer:     listed.Serializer,
		info:           info,
		items:          given,
		filling:        filling,
		rooms:          rooms,
		format:         format,
	}
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(list), r.WithContext(registry.WithEncodedItems(r.Context(), given)))
	list.end()
	return ""
}

// Listed is how the objects of a resource are listed.
type Listed struct {
	Serializer runtime.NegotiatedSerializer
	// Form is that of its objects in the version of the request; nil if the storage knows by itself.
	Form *verbatim.Form
	// RowForm is that of the version that they are stored in, of which all is made that is not Form; nil if that
	// is upstream's.
	RowForm *verbatim.Form
	// Item appends an object as the item of a list, as JSON in the version of the request. What it is encoded to is remembered on
	// demand. It is nil if that is upstream's.
	Item func(to []byte, object runtime.Object, remember bool) ([]byte, error)
	// Message writes an object with its kind, as protobuf in the version of the request. It is nil if there is no protobuf.
	Message func(to io.Writer, object runtime.Object, memory runtime.MemoryAllocator) error
	// MessageSizing and PartialSizing are those of the object as protobuf, and of its metadata alone.
	MessageSizing, PartialSizing verbatim.Sizing
	// Converted says that what is stored is converted to the objects of which tables and metadata are made.
	Converted bool
	// Table makes the rows of tables; nil if they are upstream's.
	Table rest.TableConvertor
}

// rememberedBytes is how much of what a list encodes is remembered for the next ones. One that is longer would replace all that is
// remembered, most of it before it is asked for again.
const rememberedBytes = 16 << 20

// itemsAs returns how the items of a list are to be given in a format; nil if the list is upstream's.
func (l *Listed) itemsAs(r *http.Request, as *schema.GroupVersionKind, format format) *registry.EncodedItems {
	switch {
	case as != nil && l.RowForm == nil:
		return nil
	case as != nil && format.isProtobuf():
		if row := messagesAs(as, format); row != nil {
			return &registry.EncodedItems{Form: l.RowForm, Maker: &verbatim.Maker{Row: row, Sizing: l.PartialSizing}}
		}
		return nil
	case as != nil:
		row := rowsAs(r, as, l.Table)
		if row == nil {
			return nil
		}
		if l.Converted {
			row = ofObjects(row)
		}
		return &registry.EncodedItems{Form: l.RowForm, Maker: &verbatim.Maker{Row: row}}
	case format == asProtobuf:
		if l.Message == nil || l.RowForm == nil {
			return nil
		}
		return &registry.EncodedItems{Form: l.RowForm, Maker: &verbatim.Maker{Row: l.messages(), Sizing: l.MessageSizing}}
	case l.Form == l.RowForm || l.Item == nil:
		return &registry.EncodedItems{Form: l.Form}
	}
	return &registry.EncodedItems{Form: l.RowForm, Maker: &verbatim.Maker{Row: l.objects(), Early: true}}
}

// objects returns what makes items of objects in another version than that which is stored.
func (l *Listed) objects() verbatim.Row {
	remembered := 0
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Piece) ([]byte, error) {
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

// messages returns what makes items of objects as protobuf.
func (l *Listed) messages() verbatim.Row {
	var whole bytes.Buffer
	var memory runtime.Allocator
	return func(to []byte, object func() (runtime.Object, error), _ verbatim.Piece) ([]byte, error) {
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

// wanted says what upstream's negotiation surely ends with: what objects are to be converted to, nil if they are not, and the
// format. It is false if upstream has to find out, or answers by itself.
func wanted(req *http.Request, codecs runtime.NegotiatedSerializer) (as *schema.GroupVersionKind, in format, ok bool) {
	if strings.Contains(req.Header.Get("Accept"), "cbor") { // which needs a feature gate
		return nil, 0, false
	}
	media, info, err := negotiation.NegotiateOutputMediaType(req, codecs, anything{})
	if err != nil {
		return nil, 0, false
	}
	if as = media.Convert; as != nil {
		// What objects are converted to is encoded by codecs of its own, which speak protobuf for kinds that do not.
		if media, info, err = negotiation.NegotiateOutputMediaType(req, metainternalversionscheme.Codecs, anything{}); err != nil {
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

// anything allows what any endpoint does, so that what it passes over each of them does.
type anything struct{}

func (anything) AllowsMediaTypeTransform(string, string, *schema.GroupVersionKind) bool { return true }
func (anything) AllowsServerVersion(string) bool                                        { return true }
func (anything) AllowsStreamSchema(string) bool                                         { return true }

// listWriter puts items in a list that has none. Other answers pass.
type listWriter struct {
	http.ResponseWriter
	req        *http.Request
	info       *request.RequestInfo
	serializer runtime.NegotiatedSerializer
	items      *registry.EncodedItems
	filling    func()     // called before the items are written
	rooms      *sync.Pool // newRooms
	format     format
	held       bool   // the answer is a list that lacks its items
	list       []byte // what there is of it
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *listWriter) WriteHeader(code int) {
	if w.held = code == http.StatusOK && w.items.Items != nil; !w.held {
		w.ResponseWriter.WriteHeader(code)
	}
}

var errNoItems = errors.New("there is no place for items in the list")

// Write implements http.ResponseWriter, except that it returns how many bytes it wrote, with the
// items: upstream's figures of the sizes of answers are sums of these.
func (w *listWriter) Write(p []byte) (int, error) {
	if !w.held {
		return w.ResponseWriter.Write(p)
	}
	w.list = append(w.list, p...)
	if !w.format.isWhole(w.list) {
		return 0, nil
	}
	list := filled{
		req: w.req, info: w.info, serializer: w.serializer, rooms: w.rooms, format: w.format, mayCompress: true,
		counted: &countingWriter{ResponseWriter: w.ResponseWriter}, items: w.items.Items, head: w.list,
	}
	if list.items.Len() > 0 {
		var ok bool
		if list.items, list.head, list.tail, ok = w.format.fill(w.list, list.items); !ok {
			return 0, errNoItems
		}
	}
	w.held = false
	w.filling()
	list.write()
	return list.counted.written, nil
}

// end answers that there is an error if a list was begun whose place for items was not found: it must not look like a list without any.
func (w *listWriter) end() {
	if w.held {
		klog.FromContext(w.req.Context()).Error(errNoItems, "A list was not answered", "path", w.info.Path)
		w.ResponseWriter.WriteHeader(http.StatusInternalServerError)
	}
}

// filled is an encoded list, which upstream compresses and writes as any other.
type filled struct {
	req         *http.Request
	info        *request.RequestInfo
	serializer  runtime.NegotiatedSerializer
	rooms       *sync.Pool // newRooms
	format      format
	mayCompress bool
	counted     *countingWriter
	items       verbatim.Items
	head        []byte
	tail        []byte // of items; without any, head is all there is
}

// write answers the request with the list.
func (f filled) write() {
	if c := push.ConnectionOf(f.req); c != nil { // what is written is more than one frame, and each of them two records of TLS
		c.Hold()
		defer c.Release()
	}
	responsewriters.SerializeObject(f.format.mediaType(), f, f.counted, f.req, http.StatusOK, nil)
}

// Encode implements runtime.Encoder. If an item fails, upstream gives it the error to be encoded instead. A list that has
// begun is cut off then, so that no client takes it for a whole one.
func (f filled) Encode(object runtime.Object, w io.Writer) error {
	if status, ok := object.(*metav1.Status); ok {
		return f.encodeStatus(status, w)
	}
	if f.items.Len() == 0 {
		_, err := w.Write(append(f.head, f.tail...))
		return err
	}
	to := &failing{Writer: w}
	room := f.rooms.Get().(*[]byte)
	err := convert.WriteList(to, f.head, f.items, f.format.separator(), f.tail, *room, f.mayCompress)
	if err == nil { // else HTTP/2 may still be reading what it was given
		f.rooms.Put(room)
	}
	if err != nil && to.err == nil && f.counted.begun {
		klog.FromContext(f.req.Context()).Error(err, "A list was cut off", "path", f.info.Path)
		panic(http.ErrAbortHandler)
	}
	return err
}

// failing remembers whether it has failed.
type failing struct {
	io.Writer
	err error
}

func (w *failing) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = err
	return n, err
}

func (f filled) encodeStatus(status *metav1.Status, to io.Writer) error {
	codecs := f.serializer
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), f.format.mediaType())
	if !ok { // what objects are converted to is encoded by codecs of its own
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
func (f filled) Identifier() runtime.Identifier { return "encodedItems" }

type countingWriter struct {
	http.ResponseWriter
	begun   bool
	code    int
	written int
}

func (w *countingWriter) WriteHeader(code int) {
	w.begun, w.code = true, code
	w.ResponseWriter.WriteHeader(code)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.written += n
	return n, err
}
