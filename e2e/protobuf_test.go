package e2e

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/apply"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/google/go-cmp/cmp"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"
)

// asJSON returns an object as a client of JSON gets it, for comparison with protobuf.
func asJSON(ctx context.Context, t *testing.T, config *rest.Config, name string) *v1beta1.Flunder {
	t.Helper()
	// The dynamic client accepts JSON only, whatever its configuration.
	object, err := dynamic.NewForConfigOrDie(config).Resource(flundersBeta).Namespace("default").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	flunder := &v1beta1.Flunder{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, flunder); err != nil {
		t.Fatal(err)
	}
	return flunder
}

func TestProtobuf_patchAndApply(t *testing.T) {
	t.Parallel()
	config := startServer(t, "wardle").config(t)
	ctx := bounded(t)
	recorded, media := withMedia(config)
	c := flunderClient(t, recorded, protobufType, protobufType)
	in := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"example.com/keep"}}}
	if err := flunders(c.Post()).Body(in).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	applied := map[string]any{
		"apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder",
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"colour": "red"}},
		"spec":     map[string]any{"flunderReference": "d"},
	}
	application := func() *rest.Request {
		request, err := apply.NewRequest(c, applied)
		if err != nil {
			t.Fatal(err)
		}
		return request
	}
	var sent []string
	for _, change := range []struct {
		mediaType types.PatchType
		request   *rest.Request
		want      v1beta1.FlunderSpec
	}{
		{types.MergePatchType, c.Patch(types.MergePatchType).Body([]byte(`{"spec":{"flunderReference":"b"}}`)),
			v1beta1.FlunderSpec{FlunderReference: "b", ReferenceType: v1beta1.FlunderReferenceType}},
		{types.StrategicMergePatchType,
			c.Patch(types.StrategicMergePatchType).Body([]byte(`{"spec":{"flunderReference":null,"fischerReference":"c","referenceType":"Fischer"}}`)), v1beta1.FlunderSpec{FischerReference: "c", ReferenceType: v1beta1.FischerReferenceType}},
		{types.JSONPatchType, c.Patch(types.JSONPatchType).Body([]byte(`[{"op":"replace","path":"/spec","value":{}}]`)), v1beta1.FlunderSpec{}},
		{types.ApplyYAMLPatchType, application().Param("fieldManager", "tester"),
			v1beta1.FlunderSpec{FlunderReference: "d", ReferenceType: v1beta1.FlunderReferenceType}},
	} {
		sent = append(sent, string(change.mediaType))
		got := &v1beta1.Flunder{}
		if err := flunders(change.request).Name("a").Do(ctx).Into(got); err != nil {
			t.Fatalf("%s: %v", change.mediaType, err)
		}
		if got.Spec != change.want {
			t.Errorf("%s: the answer is %+v, want %+v", change.mediaType, got.Spec, change.want)
		}
		want := asJSON(ctx, t, config, "a")
		got.TypeMeta = want.TypeMeta
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: in protobuf (-) and in JSON (+) it is not the same:\n%s", change.mediaType, cmp.Diff(got, want))
		}
		if len(got.ManagedFields) == 0 || len(got.ManagedFields[0].FieldsV1.GetRawBytes()) == 0 {
			t.Errorf("%s: managed fields %v", change.mediaType, got.ManagedFields)
		}
	}
	applied["spec"] = map[string]any{"flunderReference": "e"}
	if err := flunders(
		application(),
	).Name("a").
		Param("fieldManager", "other").
		Do(ctx).
		Error(); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), `"tester"`) {
		t.Errorf("what another manager has applied: %v, want a conflict with it", err)
	}
	// The status is a resource of its own.
	got := &v1beta1.Flunder{}
	if err := flunders(
		c.Put(),
	).Name("a").
		SubResource("status").
		Body(asJSON(ctx, t, config, "a")).
		Do(ctx).
		Into(got); err != nil ||
		got.Spec.FlunderReference != "d" {
		t.Errorf("status: %+v, %v", got, err)
	}
	// A delete answers with the object while a finalizer remains, and with a status when the object is gone.
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}
	if err := flunders(c.Delete()).Name("a").Body(options).Do(ctx).Error(); !apierrors.IsConflict(err) {
		t.Errorf("delete of another: %v, want a conflict", err)
	}
	if err := flunders(c.Delete()).Name("a").Do(ctx).Into(got); err != nil || got.DeletionTimestamp.IsZero() {
		t.Errorf("deleted: %+v, %v", got, err)
	}
	got.Finalizers = nil
	if err := flunders(c.Put()).Name("a").Body(got).Do(ctx).Error(); err != nil {
		t.Error(err)
	}
	if err := flunders(c.Get()).Name("a").Do(ctx).Error(); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v, want 404", err)
	}
	media.check(t, strings.Join(append([]string{protobufType}, sent...), ","), protobufType)
}

func TestProtobuf_watch(t *testing.T) {
	t.Parallel()
	config, media := withMedia(startServer(t, "wardle").config(t))
	ctx := bounded(t)
	c := flunderClient(t, config, protobufType, protobufType)
	create := func(name string) {
		t.Helper()
		in := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": "red"}}}
		if err := flunders(c.Post()).Body(in).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	create("before")
	// As reflectors begin: with all objects and a bookmark after them.
	w, err := flunders(c.Get()).VersionedParams(&metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		LabelSelector: "colour=red",
	}, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	expect := func(what watch.EventType, name string) *v1beta1.Flunder {
		t.Helper()
		event, open := <-w.ResultChan()
		flunder, ok := event.Object.(*v1beta1.Flunder)
		if !ok || event.Type != what || flunder.Name != name || flunder.ResourceVersion == "" {
			t.Fatalf("got %s of %+v (open: %t), want %s of %q", event.Type, event.Object, open, what, name)
		}
		return flunder
	}
	expect(watch.Added, "before")
	if synced := expect(watch.Bookmark, ""); synced.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("the bookmark is %+v", synced)
	}
	create("after")
	expect(watch.Added, "after")
	if err := flunders(
		c.Patch(types.MergePatchType),
	).Name("before").
		Body([]byte(`{"spec":{"flunderReference":"after"}}`)).
		Do(ctx).
		Error(); err != nil {
		t.Fatal(err)
	}
	if got := expect(
		watch.Modified,
		"before",
	); got.Spec.ReferenceType != v1beta1.FlunderReferenceType ||
		got.Spec.FlunderReference != "after" {
		t.Errorf("modified: %+v", got)
	}
	if err := flunders(
		c.Patch(types.MergePatchType),
	).Name("before").
		Body([]byte(`{"metadata":{"labels":{"colour":"blue"}}}`)).
		Do(ctx).
		Error(); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, "before")
	if err := flunders(c.Delete()).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, "after")

	// Another version, and a kind of that version alone.
	alpha := typedClient(t, config, v1alpha1.API(), protobufType, protobufType)
	in := &v1alpha1.Fischer{ObjectMeta: metav1.ObjectMeta{Name: "old-man"}, DisallowedFlunders: []string{"sea"}}
	if err := alpha.Post().Resource("fischers").Body(in).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	fischers, err := alpha.Get().Resource("fischers").Param("watch", "true").Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer fischers.Stop()
	if e := <-fischers.ResultChan(); e.Type != watch.Added ||
		!cmp.Equal(e.Object.(*v1alpha1.Fischer).DisallowedFlunders, in.DisallowedFlunders) {
		t.Errorf("watched: %+v", e)
	}
	media.check(t, protobufType+","+string(types.MergePatchType), protobufType)
}

func TestProtobuf_controllerRuntime_byConfiguration(t *testing.T) {
	t.Parallel()
	config := startServer(t, "wardle").config(t)
	config.ContentType, config.AcceptContentTypes = protobufType, protobufType
	ctx := bounded(t)

	recorded, media := withMediaOf(config, "flunders")
	scheme := runtime.NewScheme()
	if err := v1beta1.API().AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(recorded, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	flunder := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	if err := c.Create(ctx, flunder); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, &v1beta1.FlunderList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	flunder.Spec.FlunderReference = "b"
	if err := c.Update(ctx, flunder); err != nil {
		t.Fatal(err)
	}
	if err := c.Status().Update(ctx, flunder); err != nil {
		t.Fatal(err)
	}
	references := map[watch.EventType]string{watch.Added: "", watch.Modified: "b"}
	for _, want := range []watch.EventType{watch.Added, watch.Modified} {
		if e := <-w.ResultChan(); e.Type != want || e.Object.(*v1beta1.Flunder).Spec.FlunderReference != references[want] {
			t.Errorf("watched: %+v", e)
		}
	}
	media.check(t, protobufType, protobufType)
	before := flunder.DeepCopy()
	flunder.Labels = map[string]string{"colour": "red"}
	if err := c.Patch(ctx, flunder, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder",
		"metadata": map[string]any{"name": "a", "namespace": "default", "labels": map[string]any{"size": "big"}},
	}}), client.FieldOwner("tester")); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(
		ctx,
		client.ObjectKeyFromObject(flunder),
		flunder,
	); err != nil || flunder.Labels["colour"] != "red" ||
		flunder.Labels["size"] != "big" {
		t.Errorf("patched and applied: %+v, %v", flunder, err)
	}
	if err := c.DeleteAllOf(ctx, &v1beta1.Flunder{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(flunder), flunder); !apierrors.IsNotFound(err) {
		t.Errorf("deleted: %v", err)
	}

	// Objects without a Go type are JSON to this library, too.
	recorded, media = withMediaOf(config, "flunders")
	if c, err = client.NewWithWatch(recorded, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1beta1.API().GroupVersion.WithKind("FlunderList"))
	if err := c.List(ctx, list); err != nil || list.GetResourceVersion() == "" {
		t.Errorf("without Go types: %+v, %v", list, err)
	}
	media.check(t, "", jsonType)
}

// The types are added for the whole process: v1alpha1, which no other test passes to controller-runtime.
func TestProtobuf_controllerRuntime_registeredTypes(t *testing.T) {
	t.Parallel()
	if err := apiutil.AddToProtobufScheme(v1alpha1.API().AddToScheme); err != nil {
		t.Fatal(err)
	}
	config := startServer(t, "wardle").config(t)
	ctx := bounded(t)
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.API().AddToScheme(scheme), v1beta1.API().AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{GenerateName: "a-", Namespace: "default"}
	for want, object := range map[string]client.Object{
		protobufType: &v1alpha1.Flunder{ObjectMeta: meta},
		jsonType:     &v1beta1.Flunder{ObjectMeta: meta},
	} {
		recorded, media := withMediaOf(config, "flunders")
		c, err := client.New(recorded, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			t.Error(err)
		}
		media.check(t, want, want)
	}
}

func TestProtobuf_managerAndCache(t *testing.T) {
	t.Parallel()
	config := startServer(t, "wardle").config(t)
	config.ContentType = protobufType
	ctx := bounded(t)
	l := newLedger()
	recorded, media := withMediaOf(config, "flunders")
	m := startManager(ctx, t, recorded, l)
	i, err := m.GetCache().GetInformer(ctx, &v1beta1.Flunder{})
	if err != nil {
		t.Fatal(err)
	}
	o := observe(t, "controller-runtime", i)
	typed := flunderClient(t, config, protobufType, protobufType)
	for _, name := range []string{"x", "y", "z"} {
		got := &v1beta1.Flunder{}
		in := &v1beta1.Flunder{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{sequence: "1"}}}
		if err := flunders(typed.Post()).Body(in).Do(ctx).Into(got); err != nil {
			t.Fatal(err)
		}
		l.store(got)
		if err := o.awaitVersion(ctx, version(got)); err != nil {
			t.Fatal(err)
		}
	}
	m.awaitIdle(ctx, t)
	if err := o.awaitVersion(ctx, mark(ctx, t, config, l)); err != nil {
		t.Fatal(err)
	}
	o.check(t, l)
	media.check(t, string(types.MergePatchType), protobufType)
	if got := asJSON(ctx, t, config, "x"); got.Annotations[answer] != "1" {
		t.Errorf("in JSON: %+v", got)
	}
}

// kubectl requests flunders as JSON: it has no Go types for them, and tables, which are all that it prints without
// -o, have no protobuf on any server. No flag, and not --raw, selects another type. So its output must not depend on
// the form in which objects were sent and stored.
func TestProtobuf_kubectlSharesObjects(t *testing.T) {
	t.Parallel()
	s := startServer(t, "wardle")
	config := s.config(t)
	ctx := bounded(t)
	binary := flunderClient(t, config, protobufType, protobufType)
	in := &v1beta1.Flunder{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "a",
			Labels:      map[string]string{"colour": "red"},
			Annotations: map[string]string{"example.com/note": "written as protobuf"},
		},
		Spec: v1beta1.FlunderSpec{FischerReference: "old-man", ReferenceType: v1beta1.FischerReferenceType},
	}
	if err := flunders(binary.Post()).Body(in).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	w, err := flunders(binary.Get()).Param("watch", "true").Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()

	recorded, media := withMediaOf(config, "flunders")
	proxy := proxyTo(t, recorded)
	r := terminal(t, s)
	kubectl := func(arguments string) string {
		t.Helper()
		out, err := r.Run(ctx, "kubectl --server "+proxy+" "+arguments)
		if err != nil {
			t.Fatalf("kubectl %s: %v", arguments, err)
		}
		return r.Normalize(out)
	}
	for _, command := range []struct{ arguments, want string }{
		{"get flunders", "NAME   REFERENCE         AGE\na      fischer/old-man   <age>\n"},
		{"get flunder a -o jsonpath='{.metadata.annotations}{.spec}'", `{"example.com/note":"written as ` +
			`protobuf"}{"fischerReference":"old-man","referenceType":"Fischer"}`},
		{"get flunders.v1alpha1.wardle.example.com a -o jsonpath='{.spec}'", `{"reference":"old-man","referenceType":"Fischer"}`},
		{"get --raw /apis/wardle.example.com/v1beta1/namespaces/default/flunders/missing", "Error from server (NotFound): " +
			"flunders.wardle.example.com \"missing\" not found\n[exit code 1]\n"},
		{`apply --server-side -f - <<'EOF'
apiVersion: wardle.example.com/v1beta1
kind: Flunder
metadata: {name: a, labels: {size: big}}
EOF`, "flunder.wardle.example.com/a serverside-applied\n"},
		{"label flunder a colour=blue --overwrite", "flunder.wardle.example.com/a labeled\n"},
		{`apply -f - <<'EOF'
apiVersion: wardle.example.com/v1beta1
kind: Flunder
metadata: {name: b}
spec: {flunderReference: a}
EOF`, "flunder.wardle.example.com/b created\n"},
		{`apply -f - <<'EOF'
apiVersion: wardle.example.com/v1beta1
kind: Flunder
metadata: {name: b}
spec: {flunderReference: c}
EOF`, "flunder.wardle.example.com/b configured\n"},
		{"get flunders -l colour=blue -o name", "flunder.wardle.example.com/a\n"},
	} {
		if got := kubectl(command.arguments); got != command.want {
			t.Errorf("kubectl %s printed\n%s\nwant\n%s", command.arguments, got, command.want)
		}
	}
	if got := kubectl(
		"explain flunder.spec.referenceType",
	); !strings.Contains(got, "KIND:       Flunder\nVERSION:    v1beta1\n") ||
		!strings.Contains(got, "\nENUM:\n") {
		t.Errorf("kubectl explain printed\n%s", got)
	}
	media.check(
		t,
		strings.Join(
			[]string{string(types.ApplyYAMLPatchType), string(types.MergePatchType), jsonType, string(types.StrategicMergePatchType)},
			",",
		),
		jsonType,
	)

	for _, want := range []struct {
		what   watch.EventType
		name   string
		labels map[string]string
		spec   v1beta1.FlunderSpec
	}{
		{watch.Added, "a", map[string]string{"colour": "red"}, in.Spec},
		{watch.Modified, "a", map[string]string{"colour": "red", "size": "big"}, in.Spec},
		{watch.Modified, "a", map[string]string{"colour": "blue", "size": "big"}, in.Spec},
		{watch.Added, "b", nil, v1beta1.FlunderSpec{FlunderReference: "a", ReferenceType: v1beta1.FlunderReferenceType}},
		{watch.Modified, "b", nil, v1beta1.FlunderSpec{FlunderReference: "c", ReferenceType: v1beta1.FlunderReferenceType}},
	} {
		e := <-w.ResultChan()
		got, ok := e.Object.(*v1beta1.Flunder)
		if !ok || e.Type != want.what || got.Name != want.name || !cmp.Equal(got.Labels, want.labels) || got.Spec != want.spec {
			t.Fatalf("in protobuf: %s %+v, want %+v", e.Type, e.Object, want)
		}
	}
	list := &v1beta1.FlunderList{}
	if err := flunders(binary.Get()).Do(ctx).Into(list); err != nil || len(list.Items) != 2 {
		t.Errorf("listed: %+v, %v", list, err)
	}
}

// kubectl has Go types of the built-in kinds, and accepts protobuf where it uses them: not for tables, nor where it
// looks up its arguments, which may be of any kind.
func TestProtobuf_kubectl_builtInKinds(t *testing.T) {
	t.Parallel()
	s := startServer(t, "wardle")
	config := s.config(t)
	r := terminal(t, s)
	for _, command := range []struct{ arguments, sent, got, want string }{
		{"create namespace shop", protobufType, protobufType, "namespace/shop created\n"},
		{"get namespace shop", "", jsonType, "NAME   STATUS   AGE\nshop   Active   <age>\n"},
		{"describe namespace shop", "", jsonType + "," + protobufType, "Name:         shop\nLabels:       " +
			"kubernetes.io/metadata.name=shop\nAnnotations:  <none>\nStatus:       Active\n"},
	} {
		recorded, media := withMediaOf(config, "namespaces")
		out, err := r.Run(bounded(t), "kubectl --server "+proxyTo(t, recorded)+" "+command.arguments)
		if out = r.Normalize(out); err != nil || out != command.want {
			t.Errorf("kubectl %s: %v, %q, want %q", command.arguments, err, out, command.want)
		}
		media.check(t, command.sent, command.got)
	}
}

// proxyTo returns the address of a proxy that sends requests to the server with a configuration's transport, which
// may record the traffic.
func proxyTo(t *testing.T, config *rest.Config) string {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	t.Cleanup(proxy.Close)
	return proxy.URL
}
