package reads

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/push"
)

// watch answers a watch, or leaves the rest of it to run once all handlers have returned. It declines before it
// writes anything: if an option is invalid, or if the storage returns an error that upstream's handler has to put
// into words.
func (r *Kind) watch(w http.ResponseWriter, req *http.Request, d *fastpath.Decision) fastpath.Reason {
	watcher, watched := r.storage.(rest.Watcher)
	flusher, flushes := w.(http.Flusher)
	encoder := r.encoder(d.Media).events
	if !watched || !flushes || encoder == nil {
		return fastpath.Unsupported
	}
	options := r.listOptions(req, d.Info)
	if options == nil || !options.Watch {
		return fastpath.NoAnswer
	}
	timeout := time.Duration(float64(r.minWatchTime) * (rand.Float64() + 1))
	if options.TimeoutSeconds != nil && *options.TimeoutSeconds != 0 {
		timeout = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	klog.V(3).
		InfoS("Starting watch", "path", req.URL.Path, "resourceVersion", options.ResourceVersion, "labels", options.LabelSelector, "fields",
			options.FieldSelector, "sendInitialEvents", options.SendInitialEvents, "timeout", timeout)

	out := r.newOutput(w, flusher, req, d, encoder)
	ctx, cancel := context.WithTimeout(request.WithNamespace(req.Context(), d.Info.Namespace), timeout)
	events, err := watcher.Watch(push.WithOutput(registry.WithRememberedEvents(ctx), out), options)
	if err != nil {
		cancel()
		if !apierrors.IsTooManyRequests(err) {
			return fastpath.NoAnswer
		}
		// The watch has already waited for memory as long as a request may. Upstream's handler would wait once more.
		r.refuse(w, req, d, err)
		return ""
	}
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents && options.AllowWatchBookmarks
	compressed := initial && responsewriters.ContentEncodingSupported(req, features.WatchListCompression) == "gzip"
	if stream := standing.From(req.Context()); stream != nil {
		stream.OnEnd(cancel) // without a stream, the context of the request ends
	}
	serve := func() {
		defer cancel()
		r.stopper.add(out, cancel)
		defer r.stopper.remove(out)
		metrics.RecordLongRunning(anyWatch, d.Info, metrics.APIServerComponent, func() {
			defer events.Stop()
			out.Deeply(func() { out.writeHeader(compressed) })
			out.follow(ctx, events.ResultChan())
		})
		out.monitor()
	}
	if rest := push.RestFrom(req.Context()); rest != nil {
		out.stacks = r.stacks
		rest.Leave(serve)
	} else {
		serve()
	}
	return ""
}

// anyWatch stands for the request of a watch where its verb is counted. The query of a real one would be parsed to learn
// that it is a watch, on the stack of the goroutine that waits for events, which would have to grow for it.
var anyWatch = &http.Request{Method: metrics.MethodWatch}

// watchStopper ends watches when the server stops. A single goroutine waits for the stop while there are watches, instead
// of one per watch. The methods may be called concurrently.
type watchStopper struct {
	mu      sync.Mutex
	cancels map[*output]context.CancelFunc
	// drained is closed once no watch remains.
	drained chan struct{}
}

func (e *watchStopper) add(o *output, end context.CancelFunc) {
	if o.stopping == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.cancels) == 0 {
		e.cancels, e.drained = map[*output]context.CancelFunc{}, make(chan struct{})
		go e.wait(o.stopping, e.drained)
	}
	e.cancels[o] = end
	select {
	case <-o.stopping: // wait may have ended the others already
		end()
	default:
	}
}

func (e *watchStopper) remove(o *output) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, added := e.cancels[o]; !added {
		return
	}
	delete(e.cancels, o)
	if len(e.cancels) == 0 {
		close(e.drained)
	}
}

func (e *watchStopper) wait(stopping, none <-chan struct{}) {
	select {
	case <-none:
		return
	case <-stopping:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.cancels {
		end()
	}
}

// refuse answers a list or a watch with an error, as upstream's handlers do.
func (r *Kind) refuse(w http.ResponseWriter, req *http.Request, d *fastpath.Decision, err error) {
	writer := &countingWriter{ResponseWriter: w}
	code := responsewriters.ErrorNegotiated(err, r.serializer, r.kind.GroupVersion(), writer, req)
	d.Monitor(req, code, writer.size)
}

// writeHeader begins the response with the headers that upstream sets.
func (o *output) writeHeader(compressed bool) {
	header := o.w.Header()
	header.Set("Content-Type", o.encoder.contentType)
	header.Set("Transfer-Encoding", "chunked")
	if compressed {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
	}
	o.w.WriteHeader(http.StatusOK)
	o.flusher.Flush()
}

// monitor counts the request. It is a function of its own because it would enlarge the stack of the function that
// waits for events.
//
//go:noinline
func (o *output) monitor() { o.decision.Monitor(o.req, http.StatusOK, o.bytesWritten) }

// follow writes events until the channel or the context ends. The channel stays empty if the storage writes to the
// output itself.
func (o *output) follow(ctx context.Context, all <-chan watch.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-all:
			if !ok {
				return
			}
			full, err := o.Send(event, false)
			if err == nil && (full || len(all) == 0) {
				err = o.Flush()
			}
			if err != nil {
				return // the client has gone, or the watch has to end
			}
		}
	}
}
