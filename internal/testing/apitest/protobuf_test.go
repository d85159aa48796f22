package apitest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectors "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

const (
	leasesPath      = "/apis/zoo.example.com/v1/namespaces/default/leases"
	leasesBetaPath  = "/apis/zoo.example.com/v1beta1/namespaces/default/leases"
	leasesAlphaPath = "/apis/zoo.example.com/v1alpha1/namespaces/default/leases"
	cratesPath      = "/apis/zoo.example.com/v1/namespaces/default/crates"
)

// message is a protobuf message of a Go type.
type message interface {
	runtime.Object
	runtime.ProtobufMarshaller
	Unmarshal([]byte) error
}

// envelope returns the encoding that clients send and get: the prefix, and runtime.Unknown.
func envelope(t *testing.T, apiVersion, kind string, object message) []byte {
	t.Helper()
	var b bytes.Buffer
	object.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	if err := protobuf.NewSerializer(nil, nil).Encode(object, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// open decodes the content of an envelope.
func open(t *testing.T, data []byte, into message) *runtime.Unknown {
	t.Helper()
	raw, ok := bytes.CutPrefix(data, []byte("k8s\x00"))
	if !ok {
		t.Fatalf("no protobuf: %q", data)
	}
	unknown := &runtime.Unknown{}
	if err := unknown.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	if err := into.Unmarshal(unknown.Raw); err != nil {
		t.Fatal(err)
	}
	return unknown
}

// frame reads one length-delimited frame of a watch.
func frame(t *testing.T, read func([]byte)) []byte {
	t.Helper()
	length := make([]byte, 4)
	read(length)
	data := make([]byte, binary.BigEndian.Uint32(length))
	read(data)
	return data
}

func lease(name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
}

func TestProtobuf_requestsAndResponses(t *testing.T) {
	t.Parallel()
	for _, storage := range []annex.Storage{memory.Storage(), embedded.Dir("")} {
		t.Run(storage.Name(), func(t *testing.T) {
			t.Parallel()
			c := startWith(t, zoo(), annex.Options{Storage: storage, DataDir: t.TempDir()})
			var got coordinationv1.Lease
			body := envelope(t, "zoo.example.com/v1", "Lease", lease("a", "me"))
			created := c.post(leasesPath, body, "Content-Type", protobufType, "Accept", protobufType).want(201)
			if unknown := open(
				t,
				created.raw,
				&got,
			); created.header.Get("Content-Type") != protobufType || unknown.APIVersion != "zoo.example.com/v1" || unknown.Kind != "Lease" ||
				*got.Spec.HolderIdentity != "me" || got.UID == "" || got.ResourceVersion == "" ||
				len(got.ManagedFields) != 1 {
				t.Errorf("created: %v %v %+v", created.header, unknown, got)
			}
			if as := c.get(leasesPath + "/a"); as.str("spec", "holderIdentity") != "me" {
				t.Errorf("as JSON: %s", as.raw)
			}

			var beta coordinationv1beta1.Lease
			if unknown := open(
				t,
				c.get(leasesBetaPath+"/a", "Accept", protobufType).want(200).raw,
				&beta,
			); unknown.APIVersion != "zoo.example.com/v1beta1" ||
				*beta.Spec.HolderIdentity != "me" {
				t.Errorf("as v1beta1: %v %+v", unknown, beta)
			}
			var list coordinationv1.LeaseList
			if unknown := open(
				t,
				c.get(leasesPath, "Accept", protobufType).want(200).raw,
				&list,
			); unknown.Kind != "LeaseList" || len(list.Items) != 1 || list.ResourceVersion == "" ||
				*list.Items[0].Spec.HolderIdentity != "me" {
				t.Errorf("list: %v %+v", unknown, list)
			}

			got.Spec.HolderIdentity = new("you")
			updated := c.put(leasesPath+"/a", envelope(t, "zoo.example.com/v1", "Lease", &got), "Content-Type", protobufType, "Accept",
				protobufType).
				want(200)
			if open(t, updated.raw, &got); *got.Spec.HolderIdentity != "you" {
				t.Errorf("updated: %+v", got)
			}
			manager := map[string]string{applyPatch: "m&force=true"}
			for mediaType, patch := range map[string]string{
				mergePatch:    `{"spec":{"holderIdentity":"merged"}}`,
				jsonPatch:     `[{"op":"replace","path":"/spec/holderIdentity","value":"merged"}]`,
				strategicType: `{"spec":{"holderIdentity":"merged"}}`,
				applyPatch:    `{"apiVersion":"zoo.example.com/v1","kind":"Lease","spec":{"holderIdentity":"merged"}}`,
			} {
				patched := c.do(http.MethodPatch, leasesPath+"/a?fieldManager="+manager[mediaType], patch, "Content-Type", mediaType, "Accept",
					protobufType).
					want(200)
				if got = (coordinationv1.Lease{}); open(t, patched.raw, &got) == nil || *got.Spec.HolderIdentity != "merged" {
					t.Errorf("%s: %+v", mediaType, got)
				}
			}

			table := c.get(leasesPath, "Accept", protobufType+";as=Table;g=meta.k8s.io;v=v1,"+jsonType+";as=Table;g=meta.k8s.io;v=v1").want(200)
			if kind := table.str("kind"); kind != "Table" {
				t.Errorf("tables have no protobuf: %s", table.raw)
			}
			var status metav1.Status
			if open(t, c.get(leasesPath+"/missing", "Accept", protobufType).want(404).raw, &status); status.Reason != metav1.StatusReasonNotFound {
				t.Errorf("a refusal: %+v", status)
			}
			deleted := c.do(http.MethodDelete, leasesPath+"/a", envelope(t, "zoo.example.com/v1", "DeleteOptions", &metav1.DeleteOptions{}),
				"Content-Type", protobufType, "Accept", protobufType).
				want(200)
			if open(t, deleted.raw, &status); status.Status != metav1.StatusSuccess {
				t.Errorf("deleted: %+v", status)
			}
		})
	}
}

func TestProtobuf_watches(t *testing.T) {
	t.Parallel()
	c := start(t, zoo())
	response := c.send(t.Context(), http.MethodGet, leasesPath+"?watch=1", nil, "Accept", protobufType+";stream=watch")
	defer response.Body.Close()
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != protobufType+";stream=watch" {
		t.Fatalf("%d %v", response.StatusCode, response.Header)
	}
	second := c.send(t.Context(), http.MethodGet, leasesPath+"?watch=1", nil, "Accept", protobufType+";stream=watch")
	defer second.Body.Close()
	text := c.watch(leasesPath+"?watch=1", "Accept", jsonType)
	c.post(leasesPath, envelope(t, "zoo.example.com/v1", "Lease", lease("a", "me")), "Content-Type", protobufType).want(201)
	text.want("ADDED a")
	var first []byte
	for _, r := range []*http.Response{response, second} {
		data := frame(t, func(into []byte) {
			for n := 0; n < len(into); {
				read, err := r.Body.Read(into[n:])
				if n += read; err != nil && n < len(into) {
					t.Fatal(err)
				}
			}
		})
		if first == nil {
			first = data
		}
		event, object := metav1.WatchEvent{}, coordinationv1.Lease{}
		if err := event.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		if unknown := open(
			t,
			event.Object.Raw,
			&object,
		); event.Type != "ADDED" || unknown.Kind != "Lease" || object.Name != "a" || *object.Spec.HolderIdentity != "me" ||
			!bytes.Equal(data, first) {
			t.Errorf("%s %+v %+v", event.Type, unknown, object)
		}
	}
}

// mediaTypes records the content types of responses.
type mediaTypes struct {
	next http.RoundTripper
	mu   sync.Mutex
	got  map[string]bool
}

func (m *mediaTypes) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(r)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.got[response.Header.Get("Content-Type")] = true
	}
	return response, err
}

func TestProtobuf_informers(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := zooV1().AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(start(t, zoo()).config)
	seen := &mediaTypes{got: map[string]bool{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { seen.next = next; return seen })
	config.APIPath, config.GroupVersion = "/apis", &schema.GroupVersion{Group: "zoo.example.com", Version: "v1"}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = protobufType, protobufType+","+jsonType
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	create := func(name string) *coordinationv1.Lease {
		created := &coordinationv1.Lease{}
		if err := c.Post().Namespace("default").Resource("leases").Body(lease(name, "me")).Do(ctx).Into(created); err != nil {
			t.Fatal(err)
		}
		return created
	}
	first := create("before")

	changes := make(chan *coordinationv1.Lease, 10)
	informer := cache.NewSharedInformer(
		cache.NewListWatchFromClient(c, "leases", "default", selectors.Everything()),
		&coordinationv1.Lease{},
		0,
	)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changes <- object.(*coordinationv1.Lease) },
		UpdateFunc: func(_, object any) { changes <- object.(*coordinationv1.Lease) },
	}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { informer.RunWithContext(running) })
	expect := func(name, holder string) {
		t.Helper()
		select {
		case got := <-changes:
			if got.Name != name || *got.Spec.HolderIdentity != holder || got.UID == "" {
				t.Errorf("got %+v, want %s of %s", got, name, holder)
			}
		case <-ctx.Done():
			t.Fatalf("no event for %s", name)
		}
	}
	expect("before", "me")
	create("after")
	expect("after", "me")
	first.Spec.HolderIdentity = new("you")
	if err := c.Put().Namespace("default").Resource("leases").Name("before").Body(first).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	expect("before", "you")

	seen.mu.Lock()
	defer seen.mu.Unlock()
	for mediaType := range seen.got {
		if mediaType != protobufType && mediaType != protobufType+";stream=watch" {
			t.Errorf("an answer came as %s", mediaType)
		}
	}
	if !seen.got[protobufType] || !seen.got[protobufType+";stream=watch"] {
		t.Errorf("answers came as %v", seen.got)
	}
}

func TestProtobuf_unsupportedKinds(t *testing.T) {
	t.Parallel()
	c := start(t, zoo())
	c.post(leasesPath, envelope(t, "zoo.example.com/v1", "Lease", lease("a", "me")), "Content-Type", protobufType).want(201)
	c.post(cratesPath, `{"apiVersion":"zoo.example.com/v1","kind":"Crate","metadata":{"name":"a"}}`).want(201)
	for _, path := range []string{cratesPath, cratesPath + "/a", leasesAlphaPath, leasesAlphaPath + "/a"} {
		c.get(path, "Accept", protobufType).
			refused(406, metav1.StatusReasonNotAcceptable, "only the following media types are accepted: application/json, application/yaml")
		for _, accept := range []string{protobufType + "," + jsonType, protobufType + ";q=0.9," + jsonType + ";q=0.1", protobufType + ",*/*",
			"*/*"} {
			if a := c.get(path, "Accept", accept).want(200); a.header.Get("Content-Type") != jsonType {
				t.Errorf("%s, accept %s: %s", path, accept, a.header.Get("Content-Type"))
			}
		}
		partial := protobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		if strings.HasSuffix(path, "s") {
			partial = protobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		}
		if a := c.get(path, "Accept", partial).want(200); !bytes.HasPrefix(a.raw, []byte("k8s\x00")) {
			t.Errorf("%s: metadata have protobuf: %q", path, a.raw)
		}
		c.get(path+"?watch=1", "Accept", protobufType+";stream=watch").want(406)
	}
	for _, path := range []string{cratesPath, leasesAlphaPath} {
		c.post(path, envelope(t, "zoo.example.com/v1", "Lease", lease("b", "me")), "Content-Type", protobufType).
			refused(415, metav1.StatusReasonUnsupportedMediaType, "accepted media types include: application/json, application/yaml")
		c.put(path+"/a", "k8s\x00", "Content-Type", protobufType).want(415)
		c.post(path, `{}`, "Accept", protobufType).want(406)
		watch := c.watch(path+"?watch=1", "Accept", protobufType+";stream=watch,"+jsonType)
		watch.want("ADDED a")
	}
	c.do(http.MethodDelete, cratesPath+"/a", envelope(t, "v1", "DeleteOptions", &metav1.DeleteOptions{}), "Content-Type", protobufType).
		want(200)
}

func TestProtobuf_openAPI(t *testing.T) {
	t.Parallel()
	c := start(t, zoo())
	for doc, list := range map[string]func(operation map[string]any) string{
		"/openapi/v2": func(operation map[string]any) string { return fmt.Sprint(operation["produces"]) },
		"/openapi/v3/apis/zoo.example.com/": func(operation map[string]any) string {
			encoded, _ := json.Marshal(operation["responses"])
			return string(encoded)
		},
	} {
		for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
			path := doc
			if doc != "/openapi/v2" {
				path += version
			}
			paths := c.get(path).want(200).object()["paths"].(map[string]any)
			for _, resource := range []string{"leases", "crates"} {
				item, ok := paths["/apis/zoo.example.com/"+version+"/namespaces/{namespace}/"+resource].(map[string]any)
				if !ok {
					continue
				}
				for _, method := range []string{"get", "post", "delete"} {
					text := list(item[method].(map[string]any))
					want := resource == "leases" && version != "v1alpha1"
					if got := strings.Contains(text, protobufType); got != want || !strings.Contains(text, jsonType) {
						t.Errorf("%s %s %s %s: protobuf %t, want %t: %s", doc, version, resource, method, got, want, text)
					}
				}
			}
		}
	}
}

func TestProtobuf_badInput(t *testing.T) {
	t.Parallel()
	c := start(t, zoo())
	whole := envelope(t, "zoo.example.com/v1", "Lease", lease("a", strings.Repeat("me", 100)))
	huge := append([]byte("k8s\x00"), 0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f) // a type of four gigabytes
	negative := append([]byte("k8s\x00"), 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)
	groups := append([]byte("k8s\x00"), bytes.Repeat([]byte{0x0b}, 1<<20)...) // groups without end
	body := func(raw []byte) []byte {
		unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "zoo.example.com/v1", Kind: "Lease"}, Raw: raw}
		data, err := unknown.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte("k8s\x00"), data...)
	}
	for name, test := range map[string]struct {
		body []byte
		part string
	}{
		"nothing":                     {nil, "empty data"},
		"the prefix alone":            {[]byte("k8s\x00"), "empty body"},
		"half a prefix":               {[]byte("k8"), "does not appear to be a protobuf message"},
		"JSON":                        {[]byte(`{"kind":"Lease"}`), "does not appear to be a protobuf message"},
		"half an object":              {whole[:len(whole)/2], "unexpected EOF"},
		"without its last byte":       {whole[:len(whole)-1], "unexpected EOF"},
		"a giant length":              {huge, ""},
		"a negative length":           {negative, ""},
		"groups":                      {groups, ""},
		"an object of a giant length": {body([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x07}), ""},
		"text that is none":           {body([]byte{0x12, 0x04, 0x0a, 0x02, 0xff, 0xfe}), ""},
		"a wrong wire type":           {body([]byte{0x08, 0x01}), "wrong wireType"},
		"another kind":                {envelope(t, "zoo.example.com/v1", "Crate", lease("a", "me")), "Crate"},
		"another version": {envelope(t, "zoo.example.com/v1beta1", "Lease", lease("a", "me")), "the API version in the data " +
			"(zoo.example.com/v1beta1) does not match the expected API version (zoo.example.com/v1)"},
		"an unknown kind":         {envelope(t, "zoo.example.com/v1", "Lion", lease("a", "me")), "Lion"},
		"a group of someone else": {envelope(t, "v1", "Namespace", lease("a", "me")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := &client{t, c.config, c.http}
			a := c.post(leasesPath, test.body, "Content-Type", protobufType)
			if name == "text that is none" {
				if a.code >= 500 {
					t.Errorf("%d %s", a.code, a.raw)
				}
				return
			}
			a.refused(400, metav1.StatusReasonBadRequest, test.part)
		})
	}
	c.post(leasesPath, whole, "Content-Type", protobufType).want(201)
	for _, mediaType := range []string{jsonPatch, mergePatch, strategicType, applyPatch} {
		c.do(http.MethodPatch, leasesPath+"/a?fieldManager=m", whole, "Content-Type", mediaType).refused(400, metav1.StatusReasonBadRequest, "")
	}
	c.do(http.MethodPatch, leasesPath+"/a", whole, "Content-Type", protobufType).want(415)
	c.post(leasesPath, whole, "Content-Type", jsonType).refused(400, metav1.StatusReasonBadRequest, "")
}
