package migration

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// host has widgets, each with a resource version, and answers patches of some with a code.
type host struct {
	url string

	mu      sync.Mutex
	verbs   []string
	stale   bool
	widgets map[string]string // resource versions by name
	codes   map[string]int    // of patches, by name
	listing int               // the code of lists; 0 is 200
	patched []string          // the patches, each as NAME BODY
	written []storagemigrationv1.StorageVersionMigration
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		verbs: []string{"update", "patch", "list"}, widgets: map[string]string{"a": "5", "b": "10", "young": "11"}, codes: map[string]int{},
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := func(mediaType string, code int, body any) {
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
	}
	refuse := func(code int) {
		reason := map[int]metav1.StatusReason{
			403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict, 422: metav1.StatusReasonInvalid,
		}[code]
		answer("application/json", code, metav1.Status{
			TypeMeta: metav1.TypeMeta{
				APIVersion: "v1",
				Kind:       "Status",
			}, Status: "Failure", Code: int32(code), Reason: reason, Message: "refused",
		})
	}
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	const widgets = "/apis/stable.example.com/v1/widgets"
	switch path := r.URL.Path; {
	case path == "/apis":
		v := apidiscovery.APIVersionDiscovery{
			Version:   "v1",
			Freshness: apidiscovery.DiscoveryFreshnessCurrent,
			Resources: []apidiscovery.APIResourceDiscovery{
				{
					Resource:     "widgets",
					ResponseKind: &metav1.GroupVersionKind{Kind: "Widget"},
					Scope:        apidiscovery.ScopeNamespace,
					Verbs:        h.verbs,
				},
			},
		}
		if h.stale {
			v.Freshness, v.Resources = apidiscovery.DiscoveryFreshnessStale, nil
		}
		answer(aggregated, 200, apidiscovery.APIGroupDiscoveryList{Items: []apidiscovery.APIGroupDiscovery{
			{ObjectMeta: metav1.ObjectMeta{Name: "stable.example.com"}, Versions: []apidiscovery.APIVersionDiscovery{v}},
		}})
	case path == widgets && h.listing != 0:
		refuse(h.listing)
	case path == widgets:
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		list.ResourceVersion = "10"
		for _, name := range slices.Sorted(maps.Keys(h.widgets)) {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: "lab", Name: name, ResourceVersion: h.widgets[name], UID: "u",
			}})
		}
		answer("application/json", 200, list)
	case r.Method == http.MethodPatch:
		var body json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		name := path[strings.LastIndex(path, "/")+1:]
		h.patched = append(h.patched, name+" "+string(body))
		if code := h.codes[name]; code != 0 {
			refuse(code)
			return
		}
		answer(
			"application/json",
			200,
			metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}},
		)
	case r.Method == http.MethodPut && strings.HasSuffix(path, "/status"):
		var m storagemigrationv1.StorageVersionMigration
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			refuse(400)
			return
		}
		m.TypeMeta = metav1.TypeMeta{APIVersion: "storagemigration.k8s.io/v1", Kind: "StorageVersionMigration"}
		h.written = append(h.written, m)
		answer("application/json", 200, m)
	default:
		refuse(404)
	}
}

// conditions are those of the last status that was written, with their reasons.
func (h *host) conditions() (conditions, message string) {
	if len(h.written) == 0 {
		return "", ""
	}
	var all []string
	for _, c := range h.written[len(h.written)-1].Status.Conditions {
		all = append(all, c.Type+"="+string(c.Status))
		if c.Type != string(storagemigrationv1.MigrationRunning) {
			message = c.Message
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), message
}

func migrationOf(resource string, age time.Duration) *storagemigrationv1.StorageVersionMigration {
	m := &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
	}
	m.Spec.Resource = metav1.GroupResource{Group: "stable.example.com", Resource: resource}
	return m
}

func migrate(t *testing.T, h *host, m *storagemigrationv1.StorageVersionMigration) error {
	t.Helper()
	c, err := NewController(&rest.Config{Host: h.url, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.queue.ShutDown)
	if err := c.migrations.GetStore().Add(m); err != nil {
		t.Fatal(err)
	}
	return c.migrate(t.Context(), m.Name)
}

// Patches hold only the UID and the resource version of the listed object. Objects written after the migration began already have the
// storage version and are not patched.
func TestMigrate_oldObjects_areWritten(t *testing.T) {
	h := newHost(t)
	if err := migrate(t, h, migrationOf("widgets", 0)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(h.patched)
	if want := []string{`a {"metadata":{"resourceVersion":"5","uid":"u"}}`,
		`b {"metadata":{"resourceVersion":"10","uid":"u"}}`}; !slices.Equal(
		h.patched,
		want,
	) {
		t.Errorf("patched are %q, want %q", h.patched, want)
	}
	if got, message := h.conditions(); got != "Running=False Succeeded=True" || message != endedMessage {
		t.Errorf("ended as %s, %q", got, message)
	}
	var steps []string
	for _, m := range h.written {
		steps = append(steps, m.Status.ResourceVersion)
	}
	if want := []string{"", "10", "10"}; !slices.Equal(steps, want) {
		t.Errorf("the status has the version %q, want %q", steps, want)
	}
}

func TestMigrate_ends(t *testing.T) {
	for name, test := range map[string]struct {
		resource   string
		age        time.Duration
		prepare    func(h *host)
		conditions string
		message    string // of the end, or of the error if the migration is retried
	}{
		"an object that is gone": {prepare: func(h *host) { h.codes["a"] = 404 }, conditions: "Running=False Succeeded=True",
			message: endedMessage},
		"an object that has changed": {prepare: func(h *host) { h.codes["a"] = 409 }, conditions: "Running=False Succeeded=True",
			message: endedMessage},
		"an object that is invalid": {prepare: func(h *host) { h.codes["a"] = 422 }, conditions: "Failed=True Running=False",
			message: "the update of widgets.stable.example.com lab/a without changes is rejected: "},
		"an object that is forbidden": {prepare: func(h *host) { h.codes["b"] = 403 }, conditions: "Failed=True Running=False",
			message: "the update of widgets.stable.example.com lab/b without changes is rejected: "},
		"a server that fails": {prepare: func(h *host) { h.codes["a"] = 501 }, conditions: "Running=True",
			message: "write widgets.stable.example.com lab/a: "},
		"a list that fails": {prepare: func(h *host) { h.listing = 501 }, conditions: "Running=True",
			message: "list widgets.stable.example.com: "},
		"a resource that may come": {resource: "gadgets", conditions: "Running=True",
			message: "resource gadgets.stable.example.com does not exist yet"},
		"a resource that does not": {resource: "gadgets", age: patience + time.Second, conditions: "Failed=True Running=False",
			message: "resource gadgets.stable.example.com does not exist"},
		"a server that does not tell": {age: time.Hour, prepare: func(h *host) { h.stale = true }, conditions: "Running=True",
			message: "cannot check for widgets.stable.example.com: "},
		"a resource that is only read": {prepare: func(h *host) { h.verbs = []string{"list"} },
			conditions: "Failed=True Running=False", message: "does not support discovery operations: [update patch]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			if test.prepare != nil {
				test.prepare(h)
			}
			if test.resource == "" {
				test.resource = "widgets"
			}
			err := migrate(t, h, migrationOf(test.resource, test.age))
			got, message := h.conditions()
			if err != nil {
				message = err.Error()
			}
			if again := test.conditions == "Running=True"; (err != nil) != again || got != test.conditions ||
				!strings.Contains(message, test.message) {
				t.Errorf("ended as %s, %q, error %v; want %s, %q", got, message, err, test.conditions, test.message)
			}
		})
	}
}

// A controller goes on where another one ended.
func TestMigrate_begun_keepsItsVersion(t *testing.T) {
	h, m := newHost(t), migrationOf("widgets", time.Hour)
	m.Status.ResourceVersion = "5"
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, runningReason, runningMessage)
	if err := migrate(t, h, m); err != nil {
		t.Fatal(err)
	}
	if len(h.patched) != 1 || !strings.HasPrefix(h.patched[0], "a ") || len(h.written) != 1 {
		t.Errorf("patched are %q, with %d statuses", h.patched, len(h.written))
	}
}

func TestMigrate_ended_isLeftAlone(t *testing.T) {
	for _, condition := range []storagemigrationv1.MigrationConditionType{storagemigrationv1.MigrationSucceeded,
		storagemigrationv1.MigrationFailed} {
		h, m := newHost(t), migrationOf("widgets", time.Hour)
		set(m, condition, metav1.ConditionTrue, succeededReason, endedMessage)
		if err := migrate(t, h, m); err != nil || len(h.patched)+len(h.written) > 0 {
			t.Errorf("%s: %v, patched are %q, %d statuses", condition, err, h.patched, len(h.written))
		}
		if !meta.IsStatusConditionTrue(m.Status.Conditions, string(condition)) {
			t.Errorf("%s is not set any more", condition)
		}
	}
}
