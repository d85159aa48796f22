package controlplane

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/storetest"
)

// converter is a conversion webhook for widgets: spec.size in v1 is spec.dimensions.size in v2. It can be made to
// return wrong results.
type converter struct {
	server *httptest.Server
	lie    atomic.Pointer[func(*apiextensionsv1.ConversionResponse)]
}

func newConverter(t *testing.T) *converter {
	c := &converter{}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &apiextensionsv1.ConversionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			return // the server has been killed; a running server reports the missing response
		}
		response, err := convert(review.Request)
		if err != nil {
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
		}
		if lie := c.lie.Load(); lie != nil {
			(*lie)(response)
		}
		review.Request, review.Response = nil, response
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // as above
	}))
	c.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.server.StartTLS()
	t.Cleanup(c.server.Close)
	return c
}

func convert(r *apiextensionsv1.ConversionRequest) (*apiextensionsv1.ConversionResponse, error) {
	response := &apiextensionsv1.ConversionResponse{UID: r.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range r.Objects {
		w := &unstructured.Unstructured{}
		if err := w.UnmarshalJSON(raw.Raw); err != nil {
			return response, err
		}
		from, to := []string{"spec", "size"}, []string{"spec", "dimensions", "size"}
		if strings.HasSuffix(r.DesiredAPIVersion, "/v1") {
			from, to = to, from
		}
		size, _, err := unstructured.NestedInt64(w.Object, from...)
		if err != nil {
			return response, err
		}
		w.Object["spec"] = map[string]any{}
		if err := unstructured.SetNestedField(w.Object, size, to...); err != nil {
			return response, err
		}
		w.SetAPIVersion(r.DesiredAPIVersion)
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: w})
	}
	return response, nil
}

// clientConfig returns the webhook's client configuration.
func (c *converter) clientConfig() *apiextensionsv1.WebhookClientConfig {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
	return &apiextensionsv1.WebhookClientConfig{URL: new(c.server.URL + "/convert"), CABundle: authority}
}

// convertedBy adds v2, which becomes the stored version, and the webhook.
func convertedBy(c *converter, d *apiextensionsv1.CustomResourceDefinition) {
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: c.clientConfig(), ConversionReviewVersions: []string{"v1"}},
	}
	if len(d.Spec.Versions) == 2 {
		return
	}
	second := d.Spec.Versions[0].DeepCopy()
	second.Name, second.SelectableFields = "v2", nil
	second.Schema.OpenAPIV3Schema.Properties["spec"] = schemaOf{Type: "object", Properties: map[string]schemaOf{
		"dimensions": {Type: "object", Properties: map[string]schemaOf{"size": {Type: "integer"}}},
	}}
	d.Spec.Versions[0].Storage = false
	d.Spec.Versions = append(d.Spec.Versions, *second)
}

// written is the client's knowledge of the objects that it writes: the last acknowledged size, and the size in
// flight, which may or may not be stored.
type written struct {
	mu           sync.Mutex
	acknowledged map[string]int64
	inFlight     map[string]int64
	writes       atomic.Int64
}

func (w *written) begin(name string, size int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[name] = size
}

func (w *written) end(name string, size int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acknowledged[name] = size
	delete(w.inFlight, name)
	w.writes.Add(1)
}

// lost compares the stored objects, by name, with the written ones. If a write in flight turns out to be stored, it
// becomes the acknowledged one.
func (w *written) lost(there map[string]int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, size := range w.inFlight {
		if found, ok := there[name]; ok && found == size {
			w.acknowledged[name] = size
		}
	}
	clear(w.inFlight)
	if !maps.Equal(w.acknowledged, there) {
		for _, name := range slices.Sorted(maps.Keys(w.acknowledged)) {
			if found, ok := there[name]; !ok || found != w.acknowledged[name] {
				return fmt.Errorf("%s is %d (%t), and was %d", name, found, ok, w.acknowledged[name])
			}
		}
		return fmt.Errorf("%d objects, of which %d were written", len(there), len(w.acknowledged))
	}
	return nil
}

// write creates and updates widgets, in v2 if requested, until the server is killed.
func (w *written) write(
	ctx context.Context,
	all dynamic.Interface,
	writer string,
	random *rand.Rand,
	second *atomic.Bool,
	killed *atomic.Bool,
) error {
	for i := 0; !killed.Load(); i++ {
		name, size := fmt.Sprint(writer, "-", i/2), int64(i)
		resource, spec := widgetsResource, map[string]any{"size": size}
		if second.Load() && random.IntN(2) == 0 {
			resource.Version, spec = "v2", map[string]any{"dimensions": map[string]any{"size": size}}
		}
		w.begin(name, size)
		var err error
		if namespaced := all.Resource(resource).Namespace("default"); i%2 == 0 {
			made := widget(name, spec)
			made.SetAPIVersion(resource.GroupVersion().String())
			_, err = namespaced.Create(ctx, made, metav1.CreateOptions{})
		} else {
			var patch []byte
			if patch, err = json.Marshal(map[string]any{"spec": spec}); err != nil {
				return err
			}
			_, err = namespaced.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			if killed.Load() {
				return nil
			}
			return fmt.Errorf("%s %s: %w", resource.Version, name, err)
		}
		w.end(name, size)
	}
	return nil
}

// sizes returns the sizes of all widgets in one version.
func (v *victim) sizes(ctx context.Context, version string, path ...string) (map[string]int64, error) {
	resource := widgetsResource
	resource.Version = version
	list, err := v.all.Resource(resource).Namespace("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, w := range list.Items {
		size, ok, err := unstructured.NestedInt64(w.Object, path...)
		if err != nil || !ok || w.GetAPIVersion() != resource.GroupVersion().String() {
			return nil, fmt.Errorf("%s is %v: %w", w.GetName(), w.Object, err)
		}
		sizes[w.GetName()] = size
	}
	return sizes, nil
}

// A definition gets a second version, which becomes the stored version, and a conversion webhook, while clients
// write. The server is killed meanwhile, ANNEX_CRASH_KILLS times. No object is lost, all objects are served in both
// versions, and the definition lists their stored versions.
func TestConversion_addedThroughKills(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(victimEnv); dir != "" {
		serveUntilKilled(t, dir, embedded.Dir(""))
	}
	random := storetest.Seeded(t)
	webhook := newConverter(t)
	kills := storetest.Trials(t, "ANNEX_CRASH_KILLS", 3)
	var writes, changed int64
	for range kills {
		dir := t.TempDir()
		v := startVictim(t, dir)
		v.define(t, widgets(sizeAndColor))
		done, acknowledged := convertUntilKilled(t, v, webhook, random)
		writes += done.writes.Load()
		v = startVictim(t, dir)
		d, err := v.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(t.Context(), "widgets.stable.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored := []string{"v1"}
		if two := len(d.Spec.Versions) == 2; two {
			stored = append(stored, "v2")
			changed++
		} else if acknowledged {
			t.Fatal("the change of the definition is lost")
		}
		if !slices.Equal(d.Status.StoredVersions, stored) {
			t.Errorf("status.storedVersions are %v instead of %v", d.Status.StoredVersions, stored)
		}
		v.everythingIsThere(t, done, "v1", "spec", "size")
		v.secondVersion(t, webhook)
		v.everythingIsThere(t, done, "v2", "spec", "dimensions", "size")
		v.everythingIsThere(t, done, "v1", "spec", "size")
		v.kill(t)
	}
	fmt.Printf(
		"crash (a definition gets a conversion): %d kills, %d of them after the change, %d acknowledged writes, 0 lost\n",
		kills,
		changed,
		writes,
	)
}

func (v *victim) everythingIsThere(t *testing.T, done *written, version string, path ...string) {
	t.Helper()
	var there map[string]int64
	testwait.NoError(t, version+" is served", func(ctx context.Context) error {
		var err error
		there, err = v.sizes(ctx, version, path...)
		return err
	})
	if err := done.lost(there); err != nil {
		t.Errorf("in %s: %v", version, err)
	}
}

// secondVersion changes the definition unless it has been changed already.
func (v *victim) secondVersion(t *testing.T, webhook *converter) {
	t.Helper()
	definitions := v.definitions.ApiextensionsV1().CustomResourceDefinitions()
	testwait.NoError(t, "the definition has a conversion", func(ctx context.Context) error {
		d, err := definitions.Get(ctx, "widgets.stable.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		convertedBy(webhook, d)
		if d, err = definitions.Update(
			ctx,
			d,
			metav1.UpdateOptions{},
		); err == nil &&
			!slices.Equal(d.Status.StoredVersions, []string{"v1", "v2"}) {
			t.Errorf("status.storedVersions are %v", d.Status.StoredVersions)
		}
		return err
	})
}

// convertUntilKilled changes the definition while clients write, and kills the server meanwhile. It returns the
// written objects, and reports whether the change was acknowledged.
func convertUntilKilled(t *testing.T, v *victim, webhook *converter, random *rand.Rand) (*written, bool) {
	t.Helper()
	const writers = 4
	done := &written{acknowledged: map[string]int64{}, inFlight: map[string]int64{}}
	var killed, second atomic.Bool
	failed := make(chan error, writers)
	var writing sync.WaitGroup
	for i := range writers {
		own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		writing.Go(func() {
			failed <- done.write(t.Context(), v.all, fmt.Sprint("w", i), own, &second, &killed)
		})
	}
	reach := func(writes int64) {
		testwait.Until(t, fmt.Sprint(writes, " writes"), func() bool {
			select {
			case err := <-failed:
				t.Fatalf("a writer ended: %v", err)
			default:
			}
			return done.writes.Load() >= writes
		})
	}
	reach(int64(10 + random.IntN(30)))
	definitions := v.definitions.ApiextensionsV1().CustomResourceDefinitions()
	changed := make(chan error, 1)
	from := done.writes.Load()
	writing.Go(func() {
		d, err := definitions.Get(t.Context(), "widgets.stable.example.com", metav1.GetOptions{})
		if err == nil {
			convertedBy(webhook, d)
			_, err = definitions.Update(t.Context(), d, metav1.UpdateOptions{})
		}
		for served := false; err == nil && !served && !killed.Load(); {
			_, listing := v.sizes(t.Context(), "v2", "spec", "dimensions", "size")
			served = listing == nil
		}
		second.Store(err == nil)
		changed <- err
	})
	// Some rounds kill the server before the change is stored, some while it takes effect, and some while clients
	// write in both versions.
	reach(from + int64([]int{0, random.IntN(10), random.IntN(120)}[random.IntN(3)]))
	killed.Store(true)
	v.kill(t)
	writing.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Fatal(err)
		}
	}
	return done, <-changed == nil
}

// Invalid results of a conversion webhook are rejected with kube-apiserver's messages.
func TestConversion_invalidResults_areRefused(t *testing.T) {
	t.Parallel()
	c := clientsOf(annextest.Start(t, cluster()))
	webhook := newConverter(t)
	definition := widgets(sizeAndColor)
	convertedBy(webhook, definition)
	c.define(t, definition)
	if _, err := c.widgets.Create(t.Context(), widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	object := func(how func(w *unstructured.Unstructured)) func(*apiextensionsv1.ConversionResponse) {
		return func(r *apiextensionsv1.ConversionResponse) {
			for _, o := range r.ConvertedObjects {
				how(o.Object.(*unstructured.Unstructured))
			}
		}
	}
	const webhookOf = "conversion webhook for stable.example.com/v1, Kind=Widget "
	for _, test := range []struct {
		name, want string
		lie        func(*apiextensionsv1.ConversionResponse)
	}{
		{"no objects", webhookOf + "returned 0 objects, expected 1", func(r *apiextensionsv1.ConversionResponse) { r.ConvertedObjects = nil }},
		{"twice", webhookOf + "returned 2 objects, expected 1", func(r *apiextensionsv1.ConversionResponse) {
			r.ConvertedObjects = append(r.ConvertedObjects, r.ConvertedObjects...)
		}},
		{"another uid of the review", webhookOf + `failed: expected response.uid="`,
			func(r *apiextensionsv1.ConversionResponse) { r.UID = "other" }},
		{"a failure", webhookOf + "failed: no way", func(r *apiextensionsv1.ConversionResponse) {
			r.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no way"}
		}},
		{"a wrong version", webhookOf + "returned invalid object at index 0: invalid groupVersion (expected stable.example.com/v2, received " +
			"stable.example.com/v3)", object(func(w *unstructured.Unstructured) { w.SetAPIVersion("stable.example.com/v3") })},
		{"a wrong kind", webhookOf + "returned invalid object at index 0: invalid kind (expected Widget, received Gadget)",
			object(func(w *unstructured.Unstructured) { w.SetKind("Gadget") })},
		{"another name", webhookOf + "returned invalid object: must have the same name: b != c",
			object(func(w *unstructured.Unstructured) { w.SetName("c") })},
		{"another namespace", webhookOf + "returned invalid object: must have the same namespace: default != other",
			object(func(w *unstructured.Unstructured) { w.SetNamespace("other") })},
		{"another uid", webhookOf + "returned invalid object: must have the same UID: ",
			object(func(w *unstructured.Unstructured) { w.SetUID("other") })},
		{"no metadata", webhookOf + "returned invalid object: must have the same name: b != ",
			object(func(w *unstructured.Unstructured) { delete(w.Object, "metadata") })},
		{"a wrong label", webhookOf + "returned invalid metadata: metadata.labels: Invalid value: \"-\"",
			object(func(w *unstructured.Unstructured) { w.SetLabels(map[string]string{"-": "x"}) })},
	} {
		t.Run(test.name, func(t *testing.T) {
			webhook.lie.Store(&test.lie)
			defer webhook.lie.Store(nil)
			_, err := c.widgets.Create(t.Context(), widget("b", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("create: %v, not %s", err, test.want)
			}
		})
	}
	// Metadata that the webhook may not change stays.
	keep := object(func(w *unstructured.Unstructured) {
		w.SetFinalizers([]string{"stable.example.com/lie"})
		w.SetGeneration(7)
		w.SetLabels(map[string]string{"converted": "yes"})
	})
	webhook.lie.Store(&keep)
	made, err := c.widgets.Create(t.Context(), widget("d", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
	if err != nil || len(made.GetFinalizers()) != 0 || made.GetGeneration() != 1 || made.GetLabels()["converted"] != "yes" {
		t.Errorf("created as %v, %v", made, err)
	}
}
