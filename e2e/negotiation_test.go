package e2e

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"

	"github.com/annexapi/annex/api"
	theatrev1 "github.com/annexapi/annex/e2e/apis/theatre/v1"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// media are the types of the bodies that a client sent and got, in order and without repetitions.
type media struct {
	// resource is the resource whose requests count, or "" for all.
	resource string

	mu        sync.Mutex
	sent, got []string
}

func withMedia(config *rest.Config) (*rest.Config, *media) { return withMediaOf(config, "") }

func withMediaOf(config *rest.Config, resource string) (*rest.Config, *media) {
	m := &media{resource: resource}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return mediaRecorder{m, next} })
	return config, m
}

type mediaRecorder struct {
	media *media
	next  http.RoundTripper
}

func (r mediaRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil && (r.media.resource == "" || slices.Contains(strings.Split(request.URL.Path, "/"), r.media.resource)) {
		r.media.mu.Lock()
		defer r.media.mu.Unlock()
		if request.Body != nil {
			note(&r.media.sent, request.Header)
		}
		note(&r.media.got, response.Header)
	}
	return response, err
}

func note(types *[]string, header http.Header) {
	name, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		name = header.Get("Content-Type")
	}
	if !slices.Contains(*types, name) {
		*types = append(*types, name)
	}
}

func (m *media) check(t *testing.T, sent, got string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := strings.Join(m.sent, ","); s != sent {
		t.Errorf("the client sent %q, want %q", s, sent)
	}
	if g := strings.Join(m.got, ","); g != got {
		t.Errorf("the server sent %q, want %q", g, got)
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// flunderClient is a typed client as client generators write them.
func flunderClient(t *testing.T, config *rest.Config, accept, contentType string) rest.Interface {
	t.Helper()
	return typedClient(t, config, v1beta1.API(), accept, contentType)
}

// flunders directs a request to the flunders of the namespace default.
func flunders(r *rest.Request) *rest.Request { return r.Namespace("default").Resource("flunders") }

func typedClient(t *testing.T, config *rest.Config, of api.Facts, accept, contentType string) rest.Interface {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := of.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &of.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = accept
	config.ContentType = contentType
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Everything that a typed client and an informer do, in generated protobuf alone.
func TestNegotiation_generatedProtobuf(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "wardle").config(t))
	ctx := bounded(t)
	c := flunderClient(t, config, protobufType, protobufType)

	created := &v1beta1.Flunder{}
	in := &v1beta1.Flunder{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"b": "c", "a": "b"}},
		Spec:       v1beta1.FlunderSpec{FlunderReference: "b"},
	}
	if err := flunders(c.Post()).Body(in).Do(ctx).Into(created); err != nil {
		t.Fatal(err)
	}
	if created.Spec.ReferenceType != v1beta1.FlunderReferenceType || created.Spec.FlunderReference != "b" || len(created.Labels) != 2 ||
		created.CreationTimestamp.IsZero() {
		t.Errorf("created: %+v", created)
	}
	seen := make(chan *v1beta1.Flunder, 10)
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(c, "flunders", "default", fields.Everything()),
		&v1beta1.Flunder{},
		0,
		cache.Indexers{},
	)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen <- obj.(*v1beta1.Flunder) },
		UpdateFunc: func(_, obj any) { seen <- obj.(*v1beta1.Flunder) },
	}); err != nil {
		t.Fatal(err)
	}
	background(ctx, t, func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	})
	next := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got.Spec.FlunderReference != want {
				t.Errorf("the informer saw %+v, want a reference to %s", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("the informer did not see a reference to %s", want)
		}
	}
	next("b")
	created.Spec.FlunderReference = "c"
	updated := &v1beta1.Flunder{}
	if err := flunders(c.Put()).Name("a").Body(created).Do(ctx).Into(updated); err != nil {
		t.Fatal(err)
	}
	next("c")
	if updated.Spec.FlunderReference != "c" || updated.ResourceVersion == created.ResourceVersion {
		t.Errorf("updated: %+v", updated)
	}
	list := &v1beta1.FlunderList{}
	if err := flunders(c.Get()).Do(ctx).Into(list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.ResourceVersion == "" || !reflect.DeepEqual(list.Items[0].Spec, updated.Spec) {
		t.Errorf("listed: %+v", list)
	}
	err := flunders(c.Get()).Name("missing").Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		t.Errorf("missing: %v", err)
	}
	err = flunders(c.Post()).SetHeader("Content-Type", protobufType).Body([]byte("k8s\x00\x0a\xff")).Do(ctx).Error()
	if !apierrors.IsBadRequest(err) {
		t.Errorf("a body that is cut short: %v, want 400", err)
	}
	media.check(t, protobufType, protobufType)
	// Another version of the same object is converted as usual.
	alpha := typedClient(t, config, v1alpha1.API(), protobufType, protobufType)
	older := &v1alpha1.Flunder{}
	if err := flunders(alpha.Get()).Name("a").Do(ctx).Into(older); err != nil || older.Spec.Reference != "c" {
		t.Errorf("as v1alpha1: %+v, %v", older, err)
	}
}

func TestNegotiation_noProtobuf_fallsBackToJSON(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "theatre").config(t))
	ctx := bounded(t)
	c := typedClient(t, config, theatrev1.API(), protobufType+","+jsonType, jsonType)

	created := &theatrev1.Guest{}
	in := &theatrev1.Guest{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Seat: "b"}
	if err := c.Post().Namespace("default").Resource("guests").Body(in).Do(ctx).Into(created); err != nil {
		t.Fatal(err)
	}
	if created.Seat != "b" {
		t.Errorf("created: %+v", created)
	}
	list := &theatrev1.GuestList{}
	if err := c.Get().Namespace("default").Resource("guests").Do(ctx).Into(list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Errorf("listed: %+v", list)
	}
	w, err := c.Get().Namespace("default").Resource("guests").Param("watch", "true").Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*theatrev1.Guest).Name != "a" {
		t.Errorf("watched: %+v", e)
	}
	err = c.Get().Namespace("default").Resource("guests").Name("missing").Do(ctx).Error()
	if !apierrors.IsNotFound(err) || err.Error() != `guests.theatre.example.com "missing" not found` {
		t.Errorf("missing: %v", err)
	}
	media.check(t, jsonType, jsonType)
}

func TestNegotiation_protobufOnly_isRejected(t *testing.T) {
	t.Parallel()
	config := startServer(t, "theatre").config(t)
	ctx := bounded(t)
	sends := typedClient(t, config, theatrev1.API(), protobufType, jsonType)
	in := &theatrev1.Guest{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	get := func() *rest.Request { return sends.Get().Namespace("default").Resource("guests") }
	watching := func() error {
		_, err := get().Param("watch", "true").Watch(ctx)
		return err
	}
	for verb, err := range map[string]error{
		"get":    get().Name("a").Do(ctx).Error(),
		"list":   get().Do(ctx).Error(),
		"watch":  watching(),
		"create": sends.Post().Namespace("default").Resource("guests").Body(in).Do(ctx).Error(),
	} {
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusNotAcceptable ||
			status.Status().Reason != metav1.StatusReasonNotAcceptable ||
			!strings.Contains(err.Error(), jsonType) {
			t.Errorf("%s: got %v, want 406 with the types that are available", verb, err)
		}
	}
	accepts := typedClient(t, config, theatrev1.API(), jsonType, jsonType)
	if err := accepts.Get().Namespace("default").Resource("guests").Name("a").Do(ctx).Error(); !apierrors.IsNotFound(err) {
		t.Errorf("a create whose answer is not acceptable: %v, want nothing created", err)
	}
	err := accepts.Post().
		Namespace("default").
		Resource("guests").
		SetHeader("Content-Type", protobufType).
		Body([]byte("k8s\x00")).
		Do(ctx).
		Error()
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("a body of protobuf: %v, want 415", err)
	}
}

func TestNegotiation_builtInKinds(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "wardle").config(t))
	config.ContentType = protobufType
	ctx := bounded(t)
	namespaces := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces()

	list, err := namespaces.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := namespaces.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Namespace).Name != "shop" {
		t.Errorf("watched: %+v", e)
	}
	if _, err := namespaces.Get(ctx, "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("missing: %v", err)
	}
	media.check(t, protobufType, protobufType)
	// A patch is JSON, its response is not.
	if _, err := namespaces.Patch(
		ctx,
		"shop",
		types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Error(err)
	}
	media.check(t, protobufType+","+string(types.MergePatchType), protobufType)
}

func TestNegotiation_metadata(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "wardle").config(t))
	ctx := bounded(t)
	for name, gvr := range map[string]schema.GroupVersionResource{
		"default": {Version: "v1", Resource: "namespaces"},
		"a":       flundersBeta,
	} {
		c := metadata.NewForConfigOrDie(config).Resource(gvr)
		if gvr == flundersBeta {
			in := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := flunderClient(
				t,
				config,
				protobufType+","+jsonType,
				jsonType,
			).Post().
				Namespace("default").
				Resource("flunders").
				Body(in).
				Do(ctx).
				Error(); err != nil {
				t.Fatal(err)
			}
		}
		list, err := c.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", gvr, err)
		}
		if len(list.Items) != 1 || list.Items[0].Name != name {
			t.Errorf("%s: listed %+v", gvr, list)
		}
		w, err := c.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", gvr, err)
		}
		if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*metav1.PartialObjectMetadata).Name != name {
			t.Errorf("%s: watched %+v", gvr, e)
		}
		w.Stop()
	}
	if !slices.Contains(media.got, protobufType) {
		t.Errorf("metadata came as %q, not as the protobuf that the client prefers", media.got)
	}
}

func TestNegotiation_controllerRuntime(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "wardle").config(t))
	ctx := bounded(t)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.API().AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		t.Fatal(err)
	}
	flunder := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop"}}
	if err := c.Create(ctx, flunder); err != nil {
		t.Fatal(err)
	}
	before := flunder.DeepCopy()
	flunder.Spec.FlunderReference = "b"
	if err := c.Patch(ctx, flunder, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if err := c.Status().Update(ctx, flunder); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, &v1beta1.FlunderList{}, client.InNamespace("shop"), client.MatchingFields{"spec.referenceType": "Flunder"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*v1beta1.Flunder).ResourceVersion != flunder.ResourceVersion {
		t.Errorf("watched: %+v", e)
	}
	if err := c.DeleteAllOf(ctx, &v1beta1.Flunder{}, client.InNamespace("shop")); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("watched: %+v", e)
	}
	if !slices.Contains(media.got, protobufType) || !slices.Contains(media.got, jsonType) {
		t.Errorf("the server sent %q", media.got)
	}
}

func TestNegotiation_discoveryAndOpenAPI(t *testing.T) {
	t.Parallel()
	c := discovery.NewDiscoveryClientForConfigOrDie(startServer(t, "wardle").config(t))
	groups, resources, err := c.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	slices.Sort(names)
	if want := []string{
		"",
		"authentication.k8s.io",
		"authorization.k8s.io",
		"rbac.authorization.k8s.io",
		"wardle.example.com",
	}; !slices.Equal(names, want) ||
		len(resources) != 6 {
		t.Errorf("discovered groups %q, want %q, and resources %v", names, want, resources)
	}
	document, err := c.OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if definitions := document.GetDefinitions().GetAdditionalProperties(); len(definitions) == 0 {
		t.Error("OpenAPI v2 has no definitions")
	}
	paths, err := c.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, contentType := range []string{runtime.ContentTypeJSON, openapi.ContentTypeOpenAPIV3PB} {
		schema, err := paths["apis/wardle.example.com/v1beta1"].Schema(contentType)
		if err != nil || len(schema) == 0 {
			t.Errorf("OpenAPI v3 as %s: %d bytes, %v", contentType, len(schema), err)
		}
	}
	if v, err := c.ServerVersion(); err != nil || v.Major != "1" || v.Minor != "37" {
		t.Errorf("version: %+v, %v", v, err)
	}
}
