package reads

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
)

// stored returns an object for every name except "missing"; the object "large" is large.
type stored struct{}

func (stored) New() runtime.Object { return &corev1.ConfigMap{} }

func (stored) Destroy() {}

func (stored) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name == "missing" {
		return nil, errors.New("not found")
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: request.NamespaceValue(ctx)}}
	if name == "large" {
		m.Data = map[string]string{"x": strings.Repeat("x", fastpath.CompressedSize)}
	}
	return m, nil
}

func TestKind_get(t *testing.T) {
	t.Parallel()
	machinery, err := convert.New(&define.Server{})
	if err != nil {
		t.Fatal(err)
	}
	form := func(mediaType string) *mediaEncoder {
		info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
		return &mediaEncoder{
			info.MediaType,
			machinery.ObjectEncoder(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), nil, nil),
			nil,
		}
	}
	kind := &Kind{
		Reader: New(0), storage: stored{}, serializer: scheme.Codecs,
		json: form(runtime.ContentTypeJSON), protobuf: form(runtime.ContentTypeProtobuf),
	}
	gate := fastpath.New(fastpath.Config{})
	maps := &define.Version{
		GroupVersion: corev1.SchemeGroupVersion, Type: reflect.TypeFor[corev1.ConfigMap](), ListType: reflect.TypeFor[corev1.ConfigMapList](),
	}
	gate.Add(&define.Kind{Name: "ConfigMap", Resource: "configmaps"}, maps, stored{}, kind, nil)
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

	for name, test := range map[string]struct {
		object  string
		headers []string
		want    string // the media type of the answer; empty if upstream answers
	}{
		"as JSON":              {"m", nil, runtime.ContentTypeJSON},
		"as protobuf":          {"m", []string{"Accept", runtime.ContentTypeProtobuf}, runtime.ContentTypeProtobuf},
		"as protobuf at best":  {"m", []string{"Accept", runtime.ContentTypeProtobuf + ",application/json"}, runtime.ContentTypeProtobuf},
		"missing":              {"missing", nil, ""},
		"large":                {"large", nil, runtime.ContentTypeJSON},
		"large and compressed": {"large", []string{"Accept-Encoding", "gzip"}, ""},
		"small and compressed": {"m", []string{"Accept-Encoding", "gzip"}, runtime.ContentTypeJSON},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/"+test.object, nil)
			for i := 0; i+1 < len(test.headers); i += 2 {
				r.Header.Set(test.headers[i], test.headers[i+1])
			}
			info, err := resolver.NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			passed := false
			w := httptest.NewRecorder()
			next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })
			gate.Wrap(next).ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
			if got := w.Header().Get("Content-Type"); got != test.want || passed != (test.want == "") {
				t.Errorf("answered as %q, passed %t; want %q", got, passed, test.want)
			}
			if passed && (w.Body.Len() > 0 || len(w.Header()) > 0) {
				t.Errorf("something was written before: %v %s", w.Header(), w.Body)
			}
		})
	}
}
