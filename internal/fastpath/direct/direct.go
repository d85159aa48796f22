// Package direct is what packages reads and writes, which answer requests in front of upstream's routing, have in common:
// which requests may be answered so, and what is counted of them.
package direct

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// CompressedSize is from how many bytes on upstream compresses an answer that may be.
const CompressedSize = 128 << 10

// Body is the body of a request that has been read already, and will be once more by upstream's handlers. What Whole returns must
// not be changed.
type Body interface{ Whole() []byte }

// Path is that of a resource in a version.
type Path struct {
	root       string // of the group version, with a slash at the end
	namespaced bool
}

// PathOf returns the path of a resource.
func PathOf(gv schema.GroupVersion, namespaced bool) Path {
	if gv.Group == "" {
		return Path{"/api/" + gv.Version + "/", namespaced}
	}
	return Path{"/apis/" + gv.String() + "/", namespaced}
}

// Of says whether the path of a request is spelled as that of the resource, or of the object that is named. The info may come
// from other spellings, which are routed differently or not at all.
func (p Path) Of(info *request.RequestInfo) bool {
	length := len(p.root) + len(info.Resource)
	if info.Name != "" {
		length += 1 + len(info.Name)
	}
	if p.namespaced {
		length += len("namespaces/") + len(info.Namespace) + 1
	}
	return p.namespaced == (info.Namespace != "") && length == len(info.Path) && strings.HasPrefix(info.Path, p.root)
}

// Scope returns what metrics call the part of a resource that the path of a list or a watch is of, in whichever namespaces; empty
// if the path is not spelled as usual.
func (p Path) Scope(info *request.RequestInfo) string {
	listed := *info
	listed.Name = ""
	switch {
	case p.Of(&listed) && p.namespaced:
		return "namespace"
	case p.Of(&listed), p.namespaced && Path{p.root, false}.Of(&listed):
		return "cluster"
	}
	return ""
}

// RecordsAnswers says whether the audit of a request records its answer.
func RecordsAnswers(ctx context.Context) bool {
	return !audit.AuditContextFrom(ctx).GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// Monitor counts a request for a resource's objects that was answered with a code and so many bytes, as upstream's routes do.
func Monitor(r *http.Request, verb string, resource schema.GroupVersionResource, code, bytes int) {
	monitor(r, verb, resource, "resource", code, bytes)
}

// MonitorList is Monitor for a list or a watch.
func MonitorList(r *http.Request, resource schema.GroupVersionResource, scope string, code, bytes int) {
	monitor(r, "LIST", resource, scope, code, bytes)
}

func monitor(r *http.Request, verb string, resource schema.GroupVersionResource, scope string, code, bytes int) {
	received, ok := request.ReceivedTimestampFrom(r.Context())
	if !ok {
		received = time.Now()
	}
	metrics.MonitorRequest(r, verb, resource.Group, resource.Version, resource.Resource, "", scope,
		metrics.APIServerComponent, false, "", code, bytes, time.Since(received))
}
