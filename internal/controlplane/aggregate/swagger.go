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

// swaggerPath is the path of the OpenAPI v2 document.
const swaggerPath = "/openapi/v2"

// longestPause is the maximum pause before a failed server is asked again. The pause begins with documentsInterval
// and doubles.
const longestPause = 16 * documentsInterval

// swagger serves one OpenAPI v2 document for all servers. Few clients request it, so it asks the other servers only
// when it is requested itself, each one at most every documentsInterval, and keeps the last document of a server that
// no longer responds. A request waits for servers that responded last time or were never asked. A failed server is
// asked again in the background.
type swagger struct {
	next       http.Handler // serves the document of the server itself
	own        openapi.CacheableDownloader
	downloader openapi.Downloader
	service    *handler.OpenAPIService
	merged     http.Handler
	clock      clock.PassiveClock
	askings    *fetches

	mu      sync.Mutex
	sources map[schema.GroupVersion]*remoteDocument
	told    []schema.GroupVersion // the versions in merged
}

// remoteDocument is the document of another server. Its fields are guarded by mu of swagger, except the ones of the fetch in
// flight.
type remoteDocument struct {
	remote   *remote
	due      time.Time     // when it is asked again
	inFlight chan struct{} // closed at the end of the fetch in flight; nil if there is none
	failed   int           // consecutive failures
	latest   *spec.Swagger // nil before the first response
	document cached.Atomic[*spec.Swagger]

	downloader openapi.CacheableDownloader // used by the fetch in flight
}

// fetches are the fetches in flight.
type fetches struct {
	running context.Context
	stop    context.CancelFunc

	mu    sync.Mutex
	ended bool
	all   sync.WaitGroup
}

func newAskings() *fetches {
	a := &fetches{}
	a.running, a.stop = context.WithCancel(context.Background())
	return a
}

// begin runs ask in a goroutine. It returns false after end. The context ends with end.
func (a *fetches) begin(ask func(context.Context)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.all.Go(func() { ask(a.running) })
	return true
}

// end cancels the fetches in flight, waits for them, and prevents further ones.
func (a *fetches) end() {
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.stop()
	a.all.Wait()
}

func newSwagger(next http.Handler, askings *fetches) *swagger {
	s := &swagger{
		next:       next,
		downloader: openapi.NewDownloader(),
		clock:      clock.RealClock{},
		askings:    askings,
		sources:    map[schema.GroupVersion]*remoteDocument{},
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

// ask starts fetches from the servers that are due, and returns channels that are closed at the end of the fetches
// that the request should wait for.
func (s *swagger) ask(now *servers) (wait []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sources, func(v schema.GroupVersion, _ *remoteDocument) bool { return now.versions[v] == nil })
	for v, r := range now.versions {
		known := s.sources[v]
		if known == nil {
			known = &remoteDocument{downloader: openapi.NewCacheableDownloader(r.service.Name, &s.downloader, nil)}
			s.sources[v] = known
		}
		if known.inFlight == nil && r.available && (known.remote != r || !s.clock.Now().Before(known.due)) {
			inFlight := make(chan struct{})
			if s.askings.begin(func(ctx context.Context) { s.fetch(ctx, known, v, r) }) {
				known.remote, known.inFlight = r, inFlight
			}
		}
		if known.inFlight != nil && known.failed == 0 {
			wait = append(wait, known.inFlight)
		}
	}
	return wait
}

// fetch fetches the document of a server, unless that has not changed.
func (s *swagger) fetch(ctx context.Context, from *remoteDocument, v schema.GroupVersion, r *remote) {
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
			Info("Failed to read the OpenAPI v2 document of another server, trying again", "name", r.service.Name, "err", err)
		return
	}
	from.due, from.failed = s.clock.Now().Add(documentsInterval), 0
	if said != from.latest {
		from.latest = said
		from.document.Store(cached.Static(document, etag))
	}
}

// join updates the merged document, and reports whether it includes documents of other servers.
func (s *swagger) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := slices.SortedFunc(maps.Keys(s.sources), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	told = slices.DeleteFunc(told, func(v schema.GroupVersion) bool { return s.sources[v].latest == nil })
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

// merge merges the documents of other servers into the first one, which is the server's own.
func merge(parts []cached.Result[*spec.Swagger]) (*spec.Swagger, string, error) {
	if err := parts[0].Err; err != nil {
		return nil, "", fmt.Errorf("OpenAPI v2: %w", err)
	}
	whole := *parts[0].Value
	whole.Paths, whole.Definitions, whole.Parameters = nil, nil, nil // the parts must not be modified
	tags := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(tags, "%q", part.Etag)
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&whole, part.Value); err != nil {
			return nil, "", fmt.Errorf("merge the OpenAPI v2 documents of other servers: %w", err)
		}
	}
	return &whole, fmt.Sprintf("%x", tags.Sum(nil)), nil
}
