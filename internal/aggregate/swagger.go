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
)

// swaggerPath has the document of OpenAPI v2.
const swaggerPath = "/openapi/v2"

// swagger answers with one document of OpenAPI v2 for all servers. It asks them when it is asked itself,
// since few clients do, each one at most every documentsInterval, and keeps what one has said that
// does not answer any more.
type swagger struct {
	next       http.Handler // answers with the document of the server itself
	own        openapi.CacheableDownloader
	downloader openapi.Downloader
	service    *handler.OpenAPIService
	merged     http.Handler

	mu      sync.Mutex // held while others are asked
	sources map[schema.GroupVersion]*source
	told    []schema.GroupVersion // those that merged is made of
}

// source is the part of another server.
type source struct {
	asked      *remote
	at         time.Time
	downloader openapi.CacheableDownloader
	said       *spec.Swagger // nil until it has answered
	document   cached.Atomic[*spec.Swagger]
}

func newSwagger(next http.Handler) *swagger {
	s := &swagger{next: next, downloader: openapi.NewDownloader(), sources: map[schema.GroupVersion]*source{}}
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
	if !s.ask(now) {
		s.next.ServeHTTP(w, r)
		return
	}
	s.merged.ServeHTTP(w, r)
}

// ask brings the parts of other servers up to date, and says whether there are any.
func (s *swagger) ask(now *servers) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.sources, func(v schema.GroupVersion, _ *source) bool { return now.versions[v] == nil })
	var all sync.WaitGroup
	for v, r := range now.versions {
		known := s.sources[v]
		if known == nil {
			known = &source{downloader: openapi.NewCacheableDownloader(r.service.Name, &s.downloader, nil)}
			s.sources[v] = known
		}
		if r.available && (known.asked != r || time.Since(known.at) >= documentsInterval) {
			all.Go(func() { known.ask(v, r) })
		}
	}
	all.Wait()
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

// ask asks the server for its document, unless that has not changed.
func (s *source) ask(v schema.GroupVersion, r *remote) {
	s.asked, s.at = r, time.Now()
	s.downloader.UpdateHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), documentsTimeout)
		defer cancel()
		r.ServeHTTP(w, req.WithContext(ctx))
	}))
	said, etag, err := s.downloader.Get()
	if err != nil {
		klog.Background().V(2).Info("The OpenAPI v2 document of another server is not to be had, trying again", "name", r.service.Name, "err", err)
		return
	}
	if said == s.said {
		return
	}
	s.said = said
	s.document.Store(cached.Static(aggregator.FilterSpecByPathsWithoutSideEffects(said, []string{prefix + "/" + v.String() + "/"}), etag))
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
