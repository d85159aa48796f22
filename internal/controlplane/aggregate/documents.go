package aggregate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	// documentsPath lists the OpenAPI v3 documents, and is the prefix of their paths.
	documentsPath = "/openapi/v3"
	// documentsInterval is how often other servers are asked for their lists.
	documentsInterval = time.Minute
	documentsTimeout  = 5 * time.Second
)

// documents are the locations of other servers' OpenAPI v3 documents, by their keys in the list. If a server does not
// respond, its previous entries are kept.
type documents map[string]handler3.OpenAPIV3DiscoveryGroupVersion

func documentOf(v schema.GroupVersion) string { return "apis/" + v.String() }

// followDocuments asks other servers for their documents until the context ends.
func (a *Aggregation) followDocuments(ctx context.Context) {
	timer := time.NewTicker(documentsInterval)
	defer timer.Stop()
	for {
		a.askDocuments(ctx)
		select {
		case <-a.changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// askDocuments asks all available servers concurrently.
func (a *Aggregation) askDocuments(ctx context.Context) {
	now, before := a.known.Load().versions, *a.documents.Load()
	var mu sync.Mutex
	next := documents{}
	var all sync.WaitGroup
	for v, r := range now {
		key := documentOf(v)
		all.Go(func() {
			found, ok := before[key]
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				if ok {
					next[key] = found
				}
			}()
			if !r.available {
				return
			}
			listed, err := r.documents(ctx)
			if err != nil {
				klog.FromContext(ctx).
					V(2).
					Info("Failed to list the OpenAPI documents of another server, trying again", "name", r.service.Name, "err", err)
				return
			}
			found, ok = listed[key]
		})
	}
	all.Wait()
	a.documents.Store(&next)
}

// documents asks the server for the list of its documents.
func (r *remote) documents(ctx context.Context) (documents, error) {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}})
	ctx, cancel := context.WithTimeout(ctx, documentsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, documentsPath, nil)
	if err != nil {
		return nil, err
	}
	w := responsewriter.NewInMemoryResponseWriter()
	r.ServeHTTP(w, req)
	return listedIn(w.RespCode(), w.Data())
}

func listedIn(code int, body []byte) (documents, error) {
	if code != http.StatusOK {
		return nil, fmt.Errorf("it answers with %d", code)
	}
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	return list.Paths, nil
}

// listDocuments answers with the documents of next and of other servers.
func (a *Aggregation) listDocuments(w http.ResponseWriter, r *http.Request, next http.Handler) {
	others := *a.documents.Load()
	if len(others) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	whole := r.Clone(r.Context())
	for _, name := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range"} {
		whole.Header.Del(name)
	}
	own := responsewriter.NewInMemoryResponseWriter()
	next.ServeHTTP(own, whole)
	list, err := listedIn(own.RespCode(), own.Data())
	if err != nil { // for HEAD requests and errors
		next.ServeHTTP(w, r)
		return
	}
	for key, document := range others {
		list[key] = document
	}
	body, err := json.Marshal(handler3.OpenAPIV3Discovery{Paths: list})
	if err != nil {
		fail(w, r, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may have disconnected
}

// versionOfDocument returns the version in the path of a document.
func versionOfDocument(path string) (schema.GroupVersion, bool) {
	rest, ok := strings.CutPrefix(path, documentsPath)
	if !ok {
		return schema.GroupVersion{}, false
	}
	v, ok := versionOf(rest)
	return v, ok && rest == prefix+"/"+v.String()
}
