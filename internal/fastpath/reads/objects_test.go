package reads

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/annexapi/annex/internal/fastpath/direct"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
)

// stored has an object of every name but missing, which is large if it is called so.
type stored struct{}

func (stored) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name == "missing" {
		return nil, errors.New("there is none")
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: request.NamespaceValue(ctx)}}
	if name == "large" {
		m.Data = map[string]string{"x": strings.Repeat("x", direct.CompressedSize)}
	}
	return m, nil
}

// What is answered directly, and what upstream's handlers are left with.
func TestDirectAnswersWhatUpstreamNeedNot(t *testing.T) {
	machinery, err := convert.New(&define.Server{})
	if err != nil {
		t.Fatal(err)
	}
	form := func(mediaType string) *form {
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
		return &form{
			mediaType,
			machinery.ObjectEncoder(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), nil, nil),
			nil,
		}
	}
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	old := schema.GroupVersionResource{Version: "v1", Resource: "bindings"}
	of := map[schema.GroupVersionResource]*resource{
		maps: {
			GroupVersionResource: maps,
			path:                 direct.PathOf(corev1.SchemeGroupVersion, true),
			storage:              stored{},
			serializer:           scheme.Codecs,
			json:                 form(runtime.ContentTypeJSON),
			protobuf:             form(runtime.ContentTypeProtobuf),
		},
		nodes: {
			GroupVersionResource: nodes,
			path:                 direct.PathOf(corev1.SchemeGroupVersion, false),
			storage:              stored{},
			json:                 form(runtime.ContentTypeJSON),
		},
		old: {
			GroupVersionResource: old,
			path:                 direct.PathOf(corev1.SchemeGroupVersion, true),
			storage:              stored{},
			serializer:           scheme.Codecs,
			json:                 form(runtime.ContentTypeJSON),
			deprecated:           true,
		},
	}
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	const path, protobuf = "/api/v1/namespaces/default/configmaps/m", runtime.ContentTypeProtobuf

	for _, c := range []struct {
		name    string
		direct  string // the media type of the answer; empty if upstream answers
		path    string
		method  string
		headers []string
		with    Direct
		level   auditinternal.Level
	}{
		{name: "an object", direct: "application/json"},
		{name: "as JSON", direct: "application/json", headers: []string{"Accept", "application/json"}},
		{name: "as anything", direct: "application/json", headers: []string{"Accept", "*/*"}},
		{name: "as protobuf", direct: protobuf, headers: []string{"Accept", protobuf}},
		{name: "as protobuf at best", direct: protobuf, headers: []string{"Accept", protobuf + ",application/json"}},
		{name: "as protobuf, which there is none of", path: "/api/v1/nodes/n", headers: []string{"Accept", protobuf}},
		{name: "as protobuf or JSON", direct: "application/json", path: "/api/v1/nodes/n",
			headers: []string{"Accept", protobuf + ",application/json"}},
		{name: "as a table", headers: []string{"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}},
		{name: "as YAML", headers: []string{"Accept", "application/yaml"}},
		{name: "of a cluster", direct: "application/json", path: "/api/v1/nodes/n"},
		{name: "of a cluster in a namespace", path: "/api/v1/namespaces/default/nodes/n"},
		{name: "of a namespace in none", path: "/api/v1/configmaps/m"},
		{name: "of another resource", path: "/api/v1/namespaces/default/secrets/m"},
		{name: "of another version", path: "/api/v2/namespaces/default/configmaps/m"},
		{name: "of another group", path: "/apis/x/v1/namespaces/default/configmaps/m"},
		{name: "of a version that upstream warns of", path: "/api/v1/namespaces/default/bindings/b"},
		{name: "a subresource", path: path + "/status"},
		{name: "a list", path: "/api/v1/namespaces/default/configmaps"},
		{name: "a watch of old", path: "/api/v1/watch/namespaces/default/configmaps/m"},
		{name: "with a slash at the end", path: path + "/"},
		{name: "with a slash too many", path: "/api/v1//namespaces/default/configmaps/m"},
		{name: "with an escape", path: "/api/v1/namespaces/default/configmaps/m%2Fm"},
		{name: "with an option", path: path + "?resourceVersion=0"},
		{name: "for people", headers: []string{"User-Agent", "curl/8"}},
		{name: "missing", path: "/api/v1/namespaces/default/configmaps/missing"},
		{name: "large", direct: "application/json", path: "/api/v1/namespaces/default/configmaps/large"},
		{name: "large and compressed", path: "/api/v1/namespaces/default/configmaps/large", headers: []string{"Accept-Encoding", "gzip"}},
		{name: "small and not compressed", direct: "application/json", headers: []string{"Accept-Encoding", "gzip"}},
		{name: "of which only the head", method: http.MethodHead},
		{name: "a deletion", method: http.MethodDelete},
		{name: "a write", method: http.MethodPut},
		{name: "that is traced", with: Direct{Traced: true}},
		{name: "whose answer is recorded", with: Direct{Recorded: true}, level: auditinternal.LevelRequestResponse},
		{name: "that is recorded", direct: "application/json", with: Direct{Recorded: true}, level: auditinternal.LevelRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.path == "" {
				c.path = path
			}
			if c.method == "" {
				c.method = http.MethodGet
			}
			r := httptest.NewRequest(c.method, c.path, nil)
			for i := 0; i+1 < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			info, err := resolver.NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			ctx := audit.WithAuditContext(request.WithRequestInfo(r.Context(), info))
			if c.level != "" {
				if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: c.level}, nil); err != nil {
					t.Fatal(err)
				}
			}
			c.with.of = of
			c.with.Pretty = func(r *http.Request) bool { return strings.HasPrefix(r.UserAgent(), "curl") }
			passed := false
			w := httptest.NewRecorder()
			c.with.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })).ServeHTTP(w, r.WithContext(ctx))
			if direct := w.Header().Get("Content-Type"); direct != c.direct || passed != (c.direct == "") {
				t.Errorf("answered as %q, passed %t; want %q", direct, passed, c.direct)
			}
			if passed && (w.Body.Len() > 0 || len(w.Header()) > 0) {
				t.Errorf("something was written before: %v %s", w.Header(), w.Body)
			}
		})
	}
}
