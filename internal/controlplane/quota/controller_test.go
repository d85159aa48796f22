package quota

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// host has objects of some resources in the namespace lab, and keeps the statuses of quotas that are written.
type host struct {
	url string

	mu      sync.Mutex
	objects map[string][]string // names by resource
	broken  map[string]int      // codes by resource
	remains bool                // lists have one object and a remainingItemCount
	written []corev1.ResourceQuota
}

func newHost(t *testing.T, objects map[string][]string) *host {
	t.Helper()
	h := &host{objects: objects, broken: map[string]int{}}
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
	version := func(group, name string, resources ...string) apidiscovery.APIGroupDiscovery {
		v := apidiscovery.APIVersionDiscovery{Version: name, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
		for _, r := range resources {
			v.Resources = append(v.Resources, apidiscovery.APIResourceDiscovery{
				Resource: r, ResponseKind: &metav1.GroupVersionKind{Kind: strings.ToUpper(r)},
				Scope: apidiscovery.ScopeNamespace, Verbs: []string{"list", "watch"},
			})
		}
		return apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}, Versions: []apidiscovery.APIVersionDiscovery{v}}
	}
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	switch path := r.URL.Path; {
	case path == "/api":
		answer(
			aggregated,
			200,
			apidiscovery.APIGroupDiscoveryList{Items: []apidiscovery.APIGroupDiscovery{version("", "v1", "secrets", "configmaps")}},
		)
	case path == "/apis":
		answer(
			aggregated,
			200,
			apidiscovery.APIGroupDiscoveryList{Items: []apidiscovery.APIGroupDiscovery{version("stable.example.com", "v1", "widgets")}},
		)
	case r.Method == http.MethodPut && strings.HasSuffix(path, "/status"):
		var q corev1.ResourceQuota
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			answer("application/json", 400, metav1.Status{Message: err.Error()})
			return
		}
		h.written = append(h.written, q)
		q.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}
		answer("application/json", 200, q)
	case r.Method == http.MethodGet && strings.Contains(path, "/namespaces/lab/"):
		name := path[strings.LastIndex(path, "/")+1:]
		if code := h.broken[name]; code != 0 {
			answer(
				"application/json",
				code,
				metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: int32(code), Status: "Failure"},
			)
			return
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		list.ResourceVersion = "7"
		only, exact := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		for _, object := range h.objects[name] {
			if !exact || object == only {
				list.Items = append(
					list.Items,
					metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: object, UID: uidOf(object)}},
				)
			}
		}
		if left := int64(len(list.Items) - 1); h.remains && left > 0 {
			list.Items, list.RemainingItemCount = list.Items[:1], &left
		}
		answer("application/json", 200, list)
	default:
		answer("application/json", 404, metav1.Status{Code: 404})
	}
}

func uidOf(name string) types.UID { return types.UID("uid-of-" + name) }

// controllerOf makes a controller whose informer has synced with the quota.
func controllerOf(t *testing.T, h *host, creates *Creates, q *corev1.ResourceQuota) *Controller {
	t.Helper()
	c, err := NewController(
		&rest.Config{Host: h.url, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}},
		creates,
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.queue.ShutDown)
	if err := c.quotas.GetStore().Add(q); err != nil {
		t.Fatal(err)
	}
	return c
}

func quotaOf(hard map[string]string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "q", ResourceVersion: "1"}}
	q.Spec.Hard = corev1.ResourceList{}
	for name, limit := range hard {
		q.Spec.Hard[corev1.ResourceName(name)] = resource.MustParse(limit)
	}
	return q
}

// used returns the figures of the last status that was written, and how many there were.
func (h *host) used() (figures map[string]string, writes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	figures = map[string]string{}
	if len(h.written) == 0 {
		return figures, 0
	}
	for name, quantity := range h.written[len(h.written)-1].Status.Used {
		figures[string(name)] = quantity.String()
	}
	return figures, len(h.written)
}

func TestSync_figures(t *testing.T) {
	objects := map[string][]string{"secrets": {"a", "b", "c"}, "widgets": {"w"}}
	for name, test := range map[string]struct {
		hard    map[string]string
		prepare func(h *host, q *corev1.ResourceQuota, creates *Creates)
		want    map[string]string
		fails   bool
	}{
		"by its bare name": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "3"}},
		"by any name":      {hard: map[string]string{"count/secrets": "9"}, want: map[string]string{"count/secrets": "3"}},
		"a custom resource": {hard: map[string]string{"count/widgets.stable.example.com": "9"},
			want: map[string]string{"count/widgets.stable.example.com": "1"}},
		"a kind of which is none":  {hard: map[string]string{"configmaps": "9"}, want: map[string]string{"configmaps": "0"}},
		"no kind of the server":    {hard: map[string]string{"count/pods.example.com": "9"}, want: map[string]string{}},
		"a bare name, not served":  {hard: map[string]string{"services": "9"}, want: map[string]string{"services": "0"}},
		"workloads, which are not": {hard: map[string]string{"requests.cpu": "9"}, want: map[string]string{"requests.cpu": "0"}},
		"events, which end":        {hard: map[string]string{"count/events": "9"}, want: map[string]string{}},
		"a storage that tells how many remain": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "3"},
			prepare: func(h *host, _ *corev1.ResourceQuota, _ *Creates) { h.remains = true }},
		"a scope, which is of pods": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "0"},
			prepare: func(_ *host, q *corev1.ResourceQuota, _ *Creates) {
				q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
			}},
		"admitted, not stored yet": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "4"},
			prepare: func(_ *host, _ *corev1.ResourceQuota, creates *Creates) {
				creates.begin(t.Context(), secretNamed("d"), false)(true)
			}},
		"admitted, stored": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "3"},
			prepare: func(_ *host, _ *corev1.ResourceQuota, creates *Creates) {
				creates.begin(t.Context(), secretNamed("a"), false)(true)
			}},
		"refused": {hard: map[string]string{"secrets": "9"}, want: map[string]string{"secrets": "3"},
			prepare: func(_ *host, _ *corev1.ResourceQuota, creates *Creates) {
				creates.begin(t.Context(), secretNamed("d"), false)(false)
			}},
		"a list that fails keeps the last figure": {hard: map[string]string{"secrets": "9", "configmaps": "9"}, fails: true,
			want: map[string]string{"secrets": "8", "configmaps": "0"},
			prepare: func(h *host, q *corev1.ResourceQuota, _ *Creates) {
				h.broken["secrets"] = http.StatusForbidden
				q.Status.Used = corev1.ResourceList{"secrets": resource.MustParse("8")}
			}},
		"a definition that goes": {hard: map[string]string{"count/widgets.stable.example.com": "9"}, want: map[string]string{},
			prepare: func(h *host, _ *corev1.ResourceQuota, _ *Creates) { h.broken["widgets"] = http.StatusNotFound }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, creates, q := newHost(t, objects), &Creates{}, quotaOf(test.hard)
			if test.prepare != nil {
				test.prepare(h, q, creates)
			}
			err := controllerOf(t, h, creates, q).sync(t.Context(), nameOf(q))
			if (err != nil) != test.fails {
				t.Errorf("the count fails with %v", err)
			}
			if got, writes := h.used(); writes != 1 || !maps.Equal(got, test.want) {
				t.Errorf("%d statuses, the last with %v; want %v", writes, got, test.want)
			}
		})
	}
}

func TestSync_statusThatIsRight_isNotWritten(t *testing.T) {
	h, q := newHost(t, map[string][]string{"secrets": {"a"}}), quotaOf(map[string]string{"secrets": "9"})
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: corev1.ResourceList{"secrets": resource.MustParse("1")}}
	if err := controllerOf(t, h, &Creates{}, q).sync(t.Context(), nameOf(q)); err != nil {
		t.Fatal(err)
	}
	if _, writes := h.used(); writes != 0 {
		t.Errorf("%d statuses are written", writes)
	}
}

func TestQuota_deletedObject_frees(t *testing.T) {
	h, q, creates := newHost(t, map[string][]string{"secrets": {"a", "b"}}), quotaOf(map[string]string{"secrets": "2"}), &Creates{}
	c := controllerOf(t, h, creates, q)
	if err := c.sync(t.Context(), nameOf(q)); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.objects["secrets"] = []string{"a"}
	h.mu.Unlock()
	observed := &observer{controller: c, resource: corev1.SchemeGroupVersion.WithResource("secrets")}
	for what, deleted := range map[string]metav1.PartialObjectMetadata{
		"the quota of another namespace is left alone": {ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "b"}},
		"the quota is counted again":                   {ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "b", UID: uidOf("b")}},
	} {
		if err := observed.Delete(&deleted); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := c.queue.Len(); n != 1 {
		t.Fatalf("%d quotas are to be counted, want 1", n)
	}
	i, _ := c.queue.Get()
	if err := c.handle(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if got, writes := h.used(); writes != 2 || got["secrets"] != "1" {
		t.Errorf("%d statuses, the last with %v; want 1", writes, got)
	}
	if err := observed.Delete("what is not an object"); err == nil {
		t.Error("a deletion of no object is taken")
	}
}

func TestSource_observedObject_isNotPending(t *testing.T) {
	creates := &Creates{}
	c := controllerOf(t, newHost(t, nil), creates, quotaOf(nil))
	object := secretNamed("a")
	object.GetObject().(*corev1.Secret).UID = uidOf("a")
	creates.begin(t.Context(), object, false)(true)
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	pending := func() int { return len(creates.pending(t.Context(), secrets.GroupResource(), "lab")) }
	if n := pending(); n != 1 {
		t.Fatalf("%d are pending", n)
	}
	observed := &observer{controller: c, resource: secrets}
	for _, uid := range []types.UID{"of another", uidOf("a")} {
		if err := observed.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "a",
			UID: uid}}); err != nil {
			t.Error(err)
		}
		if n := pending(); (n == 0) != (uid == uidOf("a")) {
			t.Errorf("%d are pending after %s was observed", n, uid)
		}
	}
}

func TestUpdated_quota(t *testing.T) {
	c := controllerOf(t, newHost(t, nil), &Creates{}, quotaOf(nil))
	before := quotaOf(map[string]string{"secrets": "1"})
	status := before.DeepCopy()
	status.ResourceVersion = "2"
	c.updated(before, status)
	if n := c.queue.Len(); n != 0 {
		t.Errorf("%d quotas are counted at once after a change of status", n)
	}
	if left := c.unsettled(item{ObjectName: nameOf(status), whenSettled: true}); left <= 0 || left > settled {
		t.Errorf("it is settled in %v", left)
	}
	if left := c.unsettled(item{ObjectName: nameOf(status)}); left != 0 {
		t.Errorf("a count that does not wait waits for %v", left)
	}
	c.updated(before, quotaOf(map[string]string{"secrets": "2"}))
	if n := c.queue.Len(); n != 1 {
		t.Errorf("%d quotas are counted at once after a change of limits, want 1", n)
	}
	select {
	case <-c.named:
	default:
		t.Error("it is not looked which kinds quotas name now")
	}
	c.deleted(status)
	if left := c.unsettled(item{ObjectName: nameOf(status), whenSettled: true}); left > 0 {
		t.Errorf("a deleted quota is remembered for %v", left)
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]string{
		"secrets":                          "secrets false true",
		"count/secrets":                    "secrets true true",
		"count/widgets.stable.example.com": "widgets.stable.example.com true true",
		"count/events":                     " true false",
		"requests.cpu":                     " false false",
		"pods":                             " false false",
	} {
		kind, generic, ok := kindOf(corev1.ResourceName(name))
		if !ok {
			kind = schema.GroupResource{}
		}
		if got := fmt.Sprint(kind.String(), " ", generic, " ", ok); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// The write may outlive its request for a moment: then the object is forgotten.
func TestCreates_endedRequest_isForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates Creates
		ctx, end := context.WithCancel(t.Context())
		creates.begin(ctx, secretNamed("a"), false)(true)
		pending := func() int { return len(creates.pending(t.Context(), corev1.Resource("secrets"), "lab")) }
		end()
		time.Sleep(settled - 1)
		if n := pending(); n != 1 {
			t.Errorf("%d are pending a moment after the request has ended, want 1", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := pending(); n != 0 {
			t.Errorf("%d are pending still", n)
		}
	})
}
