package reads

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/apiserver/pkg/storage"
	compbasemetrics "k8s.io/component-base/metrics"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/stacks"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

const (
	// flushSize is the number of bytes of events that are written at once, about: as many as fit into a frame of
	// HTTP/2.
	flushSize = 16 << 10
	// initialSize is the number of bytes of events that are compressed together, about.
	initialSize = 64 << 10
)

// eventEncoder is how watches of a resource in one version and media type encode their events. All of these watches
// share the frames of shared events.
type eventEncoder struct {
	contentType      string
	framer           runtime.Framer
	embedded, events runtime.Encoder
	prefix           int // bytes of a frame that are not part of the event
	identifiers      map[watch.EventType]eventIdentifiers
}

// eventIdentifiers are the keys under which the frames of one event type are cached with the object.
type eventIdentifiers struct{ plain, compressed runtime.Identifier }

// newEventEncoder returns nil if the media type has no stream serializer.
func newEventEncoder(serializer runtime.NegotiatedSerializer, info runtime.SerializerInfo, version schema.GroupVersion) *eventEncoder {
	if info.StreamSerializer == nil {
		return nil
	}
	f := &eventEncoder{
		contentType: info.MediaType,
		framer:      info.StreamSerializer.Framer,
		embedded:    serializer.EncoderForVersion(info.Serializer, version),
		events:      serializer.EncoderForVersion(info.StreamSerializer.Serializer, version),
		identifiers: map[watch.EventType]eventIdentifiers{},
	}
	if info.MediaType != runtime.ContentTypeJSON {
		f.contentType += ";stream=watch"
	}
	var counted bytes.Buffer
	n, err := f.framer.NewFrameWriter(&counted).Write([]byte("event"))
	if err != nil {
		return nil
	}
	f.prefix = counted.Len() - n
	for _, t := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error} {
		name := func(form string) runtime.Identifier {
			id, _ := json.Marshal([]string{form, string(f.embedded.Identifier()), string(f.events.Identifier()), string(t)})
			return runtime.Identifier(id)
		}
		f.identifiers[t] = eventIdentifiers{name("frame"), name("compressed frame")}
	}
	return f
}

// write writes the frame of an event.
func (f *eventEncoder) write(kind watch.EventType, object runtime.Object, w io.Writer) error {
	var embedded, event bytes.Buffer
	if err := f.embedded.Encode(object, &embedded); err != nil {
		return fmt.Errorf("encode the object of an event: %w", err)
	}
	err := f.events.Encode(&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: embedded.Bytes()}}, &event)
	if err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	_, err = f.framer.NewFrameWriter(w).Write(event.Bytes())
	return err
}

func (r *Kind) newOutput(
	w http.ResponseWriter,
	flusher http.Flusher,
	req *http.Request,
	d *fastpath.Decision,
	encoder *eventEncoder,
) *output {
	out := &output{
		encoder:    encoder,
		decision:   d,
		w:          w,
		flusher:    flusher,
		req:        req,
		kind:       r,
		pools:      r.pools,
		connection: push.ConnectionOf(req),
	}
	if signal := request.ServerShutdownSignalFrom(req.Context()); signal != nil {
		out.stopping = signal.ShuttingDown()
	}
	return out
}

// output is the destination of a watch's events. It implements push.Output.
type output struct {
	encoder    *eventEncoder
	w          http.ResponseWriter
	flusher    http.Flusher
	connection push.Connection
	stopping   <-chan struct{}
	req        *http.Request
	kind       *Kind
	pools      *pools
	// stacks runs calls that need a large stack. It is nil if the goroutine of the watch has one.
	stacks       *stacks.Pool
	bytesWritten int
	decision     *fastpath.Decision

	started, compressed bool
	count               compbasemetrics.CounterMetric
	size                compbasemetrics.ObserverMetric

	// The bytes to be written are either frame alone, which is shared and must not be changed, or due.
	frame []byte
	due   *[]byte
	// plain holds bytes that have to be compressed before they are due.
	plain *[]byte
	// complete is true if the bytes to be written end the initial events.
	complete bool
}

var _ push.Output = (*output)(nil)

// Deeply implements push.Output.
func (o *output) Deeply(f func()) {
	if o.stacks == nil {
		f()
		return
	}
	o.stacks.Do(f)
}

// Hold implements push.Output.
func (o *output) Hold() {
	if o.connection != nil {
		o.connection.Hold()
	}
}

// Release implements push.Output.
func (o *output) Release() {
	if o.connection != nil {
		o.connection.Release()
	}
}

// begin runs before the first event. It reads from the headers whether the response is compressed.
func (o *output) begin() {
	o.started = true
	o.decision.CountAnswer()
	o.compressed = o.w.Header().Get("Content-Encoding") == "gzip"
	// They get no context: in it, exemplars would look for a span that does not exist.
	o.count = metrics.WatchEvents.WithLabelValues(o.kind.Group, o.kind.Version, o.kind.Resource)
	o.size = metrics.WatchEventsSizes.WithLabelValues(o.kind.Group, o.kind.Version, o.kind.Resource)
}

// Send implements push.Output.
func (o *output) Send(event watch.Event, shared bool) (bool, error) {
	if !o.started {
		o.begin()
	}
	frame, size, err := o.encode(event, shared)
	if err != nil {
		utilruntime.HandleErrorWithContext(o.req.Context(), err, "Failed to encode watch event")
		return false, err
	}
	o.count.Inc()
	o.size.Observe(float64(size))
	if event.Type == watch.Bookmark {
		o.complete = o.complete || isInitialEnd(event.Object)
	}
	if o.compressed && !shared {
		o.plain = o.pools.append(o.plain, frame)
		return len(*o.plain) >= initialSize, nil
	}
	if err := o.compress(); err != nil {
		return false, err
	}
	if o.due == nil && o.frame == nil {
		o.frame = frame
		return len(frame) >= flushSize, nil
	}
	if o.due == nil {
		o.due, o.frame = o.pools.append(nil, o.frame), nil
	}
	o.due = o.pools.append(o.due, frame)
	return len(*o.due) >= flushSize, nil
}

// Encoding implements push.Output.
func (o *output) Encoding() *verbatim.Encoding {
	if o.encoder != o.kind.json.events {
		return nil
	}
	return o.kind.json.Encoding()
}

// SendStored implements push.Output.
func (o *output) SendStored(object verbatim.Fragment) (bool, error) {
	if !o.started {
		o.begin()
	}
	to, full := &o.due, flushSize
	switch {
	case o.compressed:
		to, full = &o.plain, initialSize
	case o.due == nil:
		o.due, o.frame = o.pools.append(nil, o.frame), nil
	}
	*to = o.pools.append(*to, nil)
	into := *to
	begin := len(*into)
	*into = append(*into, `{"type":"ADDED","object":`...)
	*into = bytes.TrimSuffix(object.AppendWhole(*into), []byte("\n"))
	*into = append(*into, "}\n"...)
	o.count.Inc()
	o.size.Observe(float64(len(*into) - begin))
	return len(*into) >= full, nil
}

// encode returns the frame of an event and the size of the event before compression.
func (o *output) encode(event watch.Event, shared bool) (frame []byte, size int, err error) {
	var into sharedSplice
	write := func(object runtime.Object, w io.Writer) error { return o.encoder.write(event.Type, object, w) }
	object, cacheable := event.Object.(runtime.CacheableObject)
	ids := o.encoder.identifiers[event.Type]
	switch {
	case cacheable:
		err = object.CacheEncode(ids.plain, write, &into)
	default:
		err = write(event.Object, &into)
	}
	if err != nil {
		return nil, 0, err
	}
	frame, size = into.Bytes(), len(into.Bytes())-o.encoder.prefix
	if !o.compressed || !shared {
		return frame, size, nil
	}
	into = sharedSplice{}
	err = object.CacheEncode(ids.compressed, func(_ runtime.Object, w io.Writer) error { return o.pools.compress(w, frame) }, &into)
	return into.Bytes(), size, err
}

// Flush implements push.Output.
func (o *output) Flush() error {
	select {
	case <-o.stopping:
		return errStopping
	default:
	}
	if err := o.compress(); err != nil {
		return err
	}
	due, frame := o.due, o.frame
	o.due, o.frame = nil, nil
	if due != nil {
		frame = *due
	}
	n, err := o.w.Write(frame)
	o.bytesWritten += n
	if err != nil {
		return err // HTTP/2 may still read the buffer, so it does not go back to the pool
	}
	if due != nil {
		o.pools.release(due)
	}
	o.flusher.Flush()
	if o.complete {
		o.complete = false
		o.observeInitial()
	}
	return nil
}

var errStopping = errors.New("the server is shutting down")

// compress compresses the plain bytes, if any, and appends them to due.
func (o *output) compress() error {
	if o.plain == nil {
		return nil
	}
	if o.due == nil {
		o.due, o.frame = o.pools.append(nil, o.frame), nil
	}
	err := o.pools.compress(appendWriter{o.due}, *o.plain)
	o.pools.release(o.plain)
	o.plain = nil
	return err
}

// observeInitial records how long the initial events took, as upstream does.
func (o *output) observeInitial() {
	received, ok := request.ReceivedTimestampFrom(o.req.Context())
	if !ok {
		return
	}
	took := time.Since(received)
	info, _ := request.RequestInfoFrom(o.req.Context())
	options := &internalversion.ListOptions{}
	if selector, err := fields.ParseSelector(o.req.URL.Query().Get("fieldSelector")); err == nil {
		options.FieldSelector = selector
	}
	ctx := request.WithNamespace(o.req.Context(), info.Namespace)
	metrics.RecordWatchListLatency(ctx, o.kind.GroupVersionResource, metrics.CleanListScope(ctx, options), took)
	httplog.AddKeyValue(ctx, "watchlist_init_latency", took)
}

func isInitialEnd(object runtime.Object) bool {
	is, err := storage.HasInitialEventsEndBookmarkAnnotation(object)
	return is && err == nil
}

// sharedSplice receives cached bytes without copying them.
type sharedSplice struct {
	bytes.Buffer
	shared []byte
}

var _ runtime.Splice = (*sharedSplice)(nil)

// Splice implements runtime.Splice.
func (s *sharedSplice) Splice(shared []byte) { s.shared = shared }

// Bytes implements runtime.Splice.
func (s *sharedSplice) Bytes() []byte {
	if s.shared != nil {
		return s.shared
	}
	return s.Buffer.Bytes()
}

// pools hold buffers and compressors, shared by the gets and watches that are writing at the moment.
type pools struct {
	buffers     sync.Pool
	compressors func() *sync.Pool
}

func newPools() *pools {
	return &pools{compressors: sync.OnceValue(responsewriters.NewGzipWriterPoolOrDie)}
}

// append appends to a buffer. It takes a new buffer if buffer is nil.
func (p *pools) append(buffer *[]byte, data []byte) *[]byte {
	if buffer == nil {
		buffer = p.buffer()
	}
	*buffer = append(*buffer, data...)
	return buffer
}

// buffer returns an empty buffer.
func (p *pools) buffer() *[]byte {
	buffer, _ := p.buffers.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	*buffer = (*buffer)[:0]
	return buffer
}

// release returns a buffer to the pool, unless it is large.
func (p *pools) release(buffer *[]byte) {
	if cap(*buffer) <= 2*initialSize {
		p.buffers.Put(buffer)
	}
}

type appendWriter struct{ to *[]byte }

// Write implements io.Writer.
func (a appendWriter) Write(p []byte) (int, error) {
	*a.to = append(*a.to, p...)
	return len(p), nil
}

// compress writes data as a gzip member of its own. Upstream's handler writes a stream of such members, too. The end
// of the member is a block of its own, as in upstream's stream: clients wait for bytes that may follow the last block
// before they return its content.
func (p *pools) compress(w io.Writer, data []byte) error {
	to := p.compressors().Get().(*gzip.Writer)
	defer p.compressors().Put(to)
	to.Reset(w)
	defer to.Reset(nil)
	if _, err := to.Write(data); err != nil {
		return err
	}
	if err := to.Flush(); err != nil {
		return err
	}
	return to.Close()
}
