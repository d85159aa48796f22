package publish

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/workqueue"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// publisherOf returns a publisher of kube-root-ca.crt with the objects in its caches. The publisher appends its actions to did.
func publisherOf(t *testing.T, did *[]string, err error, objects ...runtime.Object) *publisher {
	t.Helper()
	informer := func(of runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(&cache.ListWatch{}, of, 0, cache.Indexers{})
	}
	p := &publisher{
		publishedObject: publishedObject{
			resource: "configmaps", name: ConfigMapName,
			create: func(_ context.Context, namespace string) error {
				*did = append(*did, "create in "+namespace)
				return err
			},
			repair: func(_ context.Context, obj runtime.Object) error {
				*did = append(*did, "repair in "+obj.(*corev1.ConfigMap).Namespace)
				return err
			},
		},
		namespaces: informer(&corev1.Namespace{}), published: informer(&corev1.ConfigMap{}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
	}
	t.Cleanup(p.queue.ShutDown)
	for _, obj := range objects {
		store := p.published.GetStore()
		if _, is := obj.(*corev1.Namespace); is {
			store = p.namespaces.GetStore()
		}
		if err := store.Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func namespace(deleted bool) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	if deleted {
		ns.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	}
	return ns
}

func published(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ConfigMapName}}
}

func TestPublish(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("configmaps"), ConfigMapName, errors.New("it ends"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		objects []runtime.Object
		err     error
		want    string
		fails   bool
	}{
		"a namespace without":     {objects: []runtime.Object{namespace(false)}, want: "create in lab"},
		"a namespace that has it": {objects: []runtime.Object{namespace(false), published("lab")}, want: "repair in lab"},
		"another that has it":     {objects: []runtime.Object{namespace(false), published("other")}, want: "create in lab"},
		"no namespace":            {objects: []runtime.Object{published("lab")}},
		"a namespace that ends":   {objects: []runtime.Object{namespace(true)}},
		"made meanwhile by another": {objects: []runtime.Object{namespace(false)}, want: "create in lab",
			err: apierrors.NewAlreadyExists(corev1.Resource("configmaps"), ConfigMapName)},
		"a namespace that is gone": {objects: []runtime.Object{namespace(false)}, want: "create in lab",
			err: apierrors.NewNotFound(corev1.Resource("namespaces"), "lab")},
		"a namespace that ends by now": {objects: []runtime.Object{namespace(false)}, want: "create in lab", err: terminating},
		"a server that fails": {objects: []runtime.Object{namespace(false)}, want: "create in lab",
			err: apierrors.NewInternalError(errors.New("x")), fails: true},
		"a repair that fails, as a 404": {objects: []runtime.Object{namespace(false), published("lab")}, want: "repair in lab",
			err: apierrors.NewNotFound(corev1.Resource("configmaps"), ConfigMapName), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var did []string
			p := publisherOf(t, &did, test.err, test.objects...)
			err := p.publish(t.Context(), "lab")
			if (err != nil) != test.fails || strings.Join(did, ", ") != test.want {
				t.Errorf("did %q, want %q; error %v", did, test.want, err)
			}
		})
	}
}

// listThenWatch has no watches with initial events.
type listThenWatch struct{ *cache.ListWatch }

func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// An event of a published object enqueues the namespace of the object, unless the publisher serves another namespace only.
func TestFollow_only(t *testing.T) {
	for only, want := range map[string]int{"": 2, "lab": 1, metav1.NamespaceSystem: 1, "other": 0} {
		var did []string
		p := publisherOf(t, &did, nil)
		p.only = only
		ended := make(chan struct{})
		p.published = cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.ConfigMapList{Items: []corev1.ConfigMap{*published("lab"), *published(metav1.NamespaceSystem)}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
		}}, &corev1.ConfigMap{}, 0, cache.Indexers{})
		if err := p.follow(); err != nil {
			t.Fatal(err)
		}
		told, err := p.published.AddEventHandler(cache.ResourceEventHandlerFuncs{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(ended)
			p.published.RunWithContext(ctx)
		}()
		testwait.Until(t, "the objects are seen", told.HasSynced)
		testwait.Until(t, "the namespaces are to be looked at", func() bool { return p.queue.Len() == want })
		cancel()
		<-ended
		if n := p.queue.Len(); n != want {
			t.Errorf("only %q: %d namespaces are looked at, want %d", only, n, want)
		}
	}
}

func bundleOf(t *testing.T, lifetime time.Duration, born time.Time) []byte {
	t.Helper()
	bundle, _, err := certs.NewServing(born, []string{"a.example.com"}, lifetime, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

func count(bundle string) int { return strings.Count(bundle, "BEGIN CERTIFICATE") }

func TestUnion_bundles(t *testing.T) {
	mine, theirs := bundleOf(t, time.Hour, time.Now()), bundleOf(t, time.Hour, time.Now())
	expired := bundleOf(t, time.Hour, time.Now().Add(-48*time.Hour))
	own, err := cert.ParseCertsPEM(mine)
	if err != nil {
		t.Fatal(err)
	}
	block := string(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: own[0].Raw}))
	of := len(own)
	for name, test := range map[string]struct {
		found string
		own   []byte
		want  int
	}{
		"nothing there":         {"", mine, of},
		"mine there":            {string(mine), mine, of},
		"another's stays":       {string(theirs), mine, 2 * of},
		"an expired one goes":   {string(expired), mine, of},
		"what cannot be read":   {"nonsense", mine, of},
		"mine cannot be read":   {string(theirs), []byte("nonsense"), of},
		"nothing, and no bytes": {"", nil, 0},
	} {
		got := union(test.found, test.own)
		if count(got) != test.want {
			t.Errorf("%s: %d certificates, want %d", name, count(got), test.want)
		}
		if test.want > 0 && bytes.Equal(test.own, mine) && !strings.Contains(got, block) {
			t.Errorf("%s: mine is missing", name)
		}
		if again := union(got, test.own); again != got {
			t.Errorf("%s: it changes when nothing has changed", name)
		}
	}
}

func TestAuthentication_data_keepsNamesOfOthers(t *testing.T) {
	a := Authentication{
		UserCA: func() []byte { return nil }, ProxyCA: func() []byte { return nil },
		ProxyNames: func() []string { return []string{"front-proxy-client", "b"} },
	}
	data := a.data(map[string]string{allowedNamesKey: `["a","b"]`, "more": "x"})
	if got, want := data[allowedNamesKey], `["a","b","front-proxy-client"]`; got != want {
		t.Errorf("the names are %s, want %s", got, want)
	}
	if _, there := data["more"]; there {
		t.Error("a key that nothing reads is kept")
	}
	if got := a.data(map[string]string{allowedNamesKey: "nonsense"})[allowedNamesKey]; got != `["b","front-proxy-client"]` {
		t.Errorf("instead of nonsense: %s", got)
	}
	if keys := len(data); keys != 7 || !slices.Contains(listOf(data["requestheader-username-headers"]), "X-Remote-User") {
		t.Errorf("the data are %v", data)
	}
}
