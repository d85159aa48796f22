package reads

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/model/define"
)

// busyStorage refuses every call for lack of memory.
type busyStorage struct{ asked *int }

func (busyStorage) New() runtime.Object { return &corev1.Pod{} }

func (busyStorage) Destroy() {}

func (busyStorage) NewList() runtime.Object { return &corev1.PodList{} }

func (busyStorage) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewTooManyRequests("busy", 7)
}

func (s busyStorage) Watch(context.Context, *internalversion.ListOptions) (watch.Interface, error) {
	*s.asked++
	return nil, apierrors.NewTooManyRequests("busy", 7)
}

// A watch that has waited for memory in vain is refused: it must not wait once more in upstream's handler.
func TestWatch_withoutMemory_isRefusedOnce(t *testing.T) {
	t.Parallel()
	gv := corev1.SchemeGroupVersion
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	asked, passedOn := 0, 0
	storage := busyStorage{&asked}
	read := &Kind{
		Reader:     New(0),
		storage:    storage,
		serializer: scheme.Codecs,
		json:       &mediaEncoder{mediaType: info.MediaType, events: newEventEncoder(scheme.Codecs, info, gv)},
		convertor:  scheme.Scheme,
		kind:       gv.WithKind("Pod"),
	}
	gate := fastpath.New(fastpath.Config{})
	pods := &define.Version{GroupVersion: gv, Type: reflect.TypeFor[corev1.Pod](), ListType: reflect.TypeFor[corev1.PodList]()}
	gate.Add(&define.Kind{Name: "Pod", Resource: "pods"}, pods, storage, read, nil)
	handler := gate.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passedOn++ }))
	r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/pods?watch=1", nil)
	r = r.WithContext(
		request.WithRequestInfo(
			r.Context(),
			&request.RequestInfo{
				IsResourceRequest: true,
				Path:              r.URL.Path,
				Verb:              "watch",
				APIPrefix:         "api",
				APIVersion:        "v1",
				Namespace:         "default",
				Resource:          "pods",
			},
		),
	)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "7" || asked != 1 || passedOn != 0 {
		t.Errorf("answered %d, %v, after %d attempts and %d of upstream's", w.Code, w.Header(), asked, passedOn)
	}
}
