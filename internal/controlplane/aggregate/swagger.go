package aggregate

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	openapi "k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/clock"
)

// swaggerPath has the document of OpenAPI v2.
const swaggerPath = "/openapi/v2"

// longestPause bounds how long a server that fails is not asked again: the pause begins with
// documentsInterval and doubles.
const longestPause = 16 * documentsInterval

// swagger answers with one document of OpenAPI v2 for all servers. It asks them when it is asked itself,
// since few clients do, each one at most every documentsInterval, and keeps what one has said that
// does not answer any more. A request waits for those that have answered when they were last asked, or
// never were asked; a server that has failed is asked again beside the requests.
type swagger struct {
	next       http.Handler // answers with the document of the server itself
	own        openapi.CacheableDownloader
	downloader openapi.Downloader
	service    *handler.OpenAPIService
	merged     http.Handler
	clock      clock.PassiveClock
	askings    *askings

	mu      sync.Mutex
	sources map[schema.GroupVersion]*source
	told    []schema.GroupVersion // those that merged is made of
}

// source is the part of another server. Changing it needs the mu of swagger, but for what only
// the asking in flight uses.
type source struct {
	asked    *remote
	due      time.Time     // when it is asked again
	inFlight chan struct{} // closed when the asking in flight is over; nil for none
	failed   int           // how often in a row
	said     *spec.Swagger // nil until it has answered
	document cached.Atomic[*spec.Swagger]

	downloader openapi.CacheableDownloader // of the asking in flight
}

// askings are those of other servers that are in flight.
type askings struct {
	running context.Context
	stop    context.CancelFunc

	mu    sync.Mutex
	ended bool
	all   sync.WaitGroup
}

func newAskings() *askings {
	a := &askings{}
	a.running, a.stop = context.WithCancel(context.Background())
	return a
}

// begin asks in a goroutine; false if they have ended. The context ends with them.
func (a *askings) begin(ask func(context.Context)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.all.Go(func() { ask(a.running) })
	return true
}

// end waits for those in flight, and lets no more begin.
func (a *askings) end() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.stop()
	a.all.Wait()
}

func newSwagger(next http.Handler, askings *askings) *swagger {
	s := &swagger{
		next:       next,
		downloader: openapi.NewDownloader(),
		clock:      clock.RealClock{},
		askings:    askings,
		sources:    map[schema.GroupVersion]*source{},
	}
	s.own = openapi.NewCacheableDownloader("the server itself", &s.downloader, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := &request.RequestInfo{Path: swaggerPath, Verb: "get"}
		next.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
	}))
	s.service = handler.NewOpenAPIServiceLazy(s.own)
	mux := http.NewServeMux()
	s.service.RegisterOpenAPIVersionedService(swaggerPath, mux)
	s.merged = mux
	return s
}

func (s *swagger) serve(w http.ResponseWriter, r *http.Request, now *servers) {
	for _, asked := range s.ask(now) {
		select {
		case <-asked:
		case <-r.Context().Done():
		}
	}
	if !s.join() {
		s.next.ServeHTTP(w, r)
		return
	}
	s.merged.ServeHTTP(w, r)
}

// ask asks the servers that are due, and returns what is closed when those have answered that are
// worth waiting for.
func (s *swagger) ask(now *servers) (wait []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sources, func(v schema.GroupVersion, _ *source) bool { return now.versions[v] == nil })
	for v, r := range now.versions {
		known := s.sources[v]
		if known == nil {
			known = &source{downloader: openapi.NewCacheableDownloader(r.service.Name, &s.downloader, nil)}
			s.sources[v] = known
		}
		if known.inFlight == nil && r.available && (known.asked != r || !s.clock.Now().Before(known.due)) {
			inFlight := make(chan struct{})
			if s.askings.begin(func(ctx context.Context) { s.fetch(ctx, known, v, r) }) {
				known.asked, known.inFlight = r, inFlight
			}
		}
		if known.inFlight != nil && known.failed == 0 {
			wait = append(wait, known.inFlight)
		}
	}
	return wait
}

// fetch gets the document of a server, unless that has not changed.
func (s *swagger) fetch(ctx context.Context, from *source, v schema.GroupVersion, r *remote) {
	from.downloader.UpdateHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		bounded, cancel := context.WithTimeout(req.Context(), documentsTimeout)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		r.ServeHTTP(w, req.WithContext(bounded))
	}))
	said, etag, err := from.downloader.Get()
	var document *spec.Swagger
	if err == nil {
		document = aggregator.FilterSpecByPathsWithoutSideEffects(said, []string{prefix + "/" + v.String() + "/"})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	close(from.inFlight)
	from.inFlight = nil
	if err != nil {
		from.due = s.clock.Now().Add(min(documentsInterval<<min(from.failed, 10), longestPause))
		from.failed++
		klog.Background().
			V(2).
			Info("The OpenAPI v2 document of another server is not to be had, trying again", "name", r.service.Name, "err", err)
		return
	}
	from.due, from.failed = s.clock.Now().Add(documentsInterval), 0
	if said != from.said {
		from.said = said
		from.document.Store(cached.Static(document, etag))
	}
}

// join makes one document of what all have said, and says whether others have said anything.
func (s *swagger) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := slices.SortedFunc(maps.Keys(s.sources), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	told = slices.DeleteFunc(told, func(v schema.GroupVersion) bool { return s.sources[v].said == nil })
	if !slices.Equal(told, s.told) {
		s.told = told
		parts := []cached.Value[*spec.Swagger]{s.own}
		for _, v := range told {
			parts = append(parts, &s.sources[v].document)
		}
		s.service.UpdateSpecLazy(cached.MergeList(merge, parts))
	}
	return len(told) > 0
}

// merge puts the documents of others into that of the server itself, which is the first.
func merge(parts []cached.Result[*spec.Swagger]) (*spec.Swagger, string, error) {
	if err := parts[0].Err; err != nil {
		return nil, "", fmt.Errorf("OpenAPI v2: %w", err)
	}
	whole := *parts[0].Value
	whole.Paths, whole.Definitions, whole.Parameters = nil, nil, nil // those of the parts are not to be changed
	tags := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(tags, "%q", part.Etag)
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&whole, part.Value); err != nil {
			return nil, "", fmt.Errorf("merge the OpenAPI v2 documents of other servers: %w", err)
		}
	}
	return &whole, fmt.Sprintf("%x", tags.Sum(nil)), nil
}
