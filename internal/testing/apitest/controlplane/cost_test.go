package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/controlplane"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// BenchmarkCustomResources compares the cost of requests for custom resources with that for a typed kind with the
// same schema, defaults and rules, in the same server. Rounds alternate, and the result is the median of their
// ratios. The requests use no network.
//
//	go test ./internal/testing/apitest/controlplane -run xxx -bench CustomResources -benchtime 5000x
func BenchmarkCustomResources(b *testing.B) {
	send := crates(b)
	sized := func(group, name, label, size string) string {
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Crate","metadata":{"name":%q,"labels":{"app":"web","tier":"front"}},`+
			`"spec":{"size":%q,"boxes":5,"owner":"jane","label":%q,"code":"abcdef","goods":[{"name":"a",`+
			`"kind":"x"},{"name":"b","kind":"y","count":4}],"tags":["one","two"]}}`, group, name, size, label)
	}
	crate := func(group, name, label string) string { return sized(group, name, label, "large") }
	in := func(namespace, group string) string {
		return "/apis/" + group + "/v1/namespaces/" + namespace + "/crates"
	}
	path := func(group string) string { return in("default", group) }
	send(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"many"}}`, http.StatusCreated)
	for namespace, objects := range map[string]int{"default": 100, "many": 1000} {
		for _, group := range []string{typedGroup, customGroup} {
			for i := range objects {
				send(http.MethodPost, in(namespace, group), crate(group, fmt.Sprint("c", i), "label"), http.StatusCreated)
			}
		}
	}
	send(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"crowd"}}`, http.StatusCreated)
	for _, group := range []string{typedGroup, customGroup} {
		for i := range 10_000 {
			size := "large"
			if i%1000 == 0 {
				size = "small"
			}
			send(http.MethodPost, in("crowd", group), sized(group, fmt.Sprint("c", i), "label", size), http.StatusCreated)
		}
	}
	for name, request := range map[string]func(group string, n int){
		"get":          func(group string, _ int) { send(http.MethodGet, path(group)+"/c7", "", http.StatusOK) },
		"list of 100":  func(group string, _ int) { send(http.MethodGet, path(group), "", http.StatusOK) },
		"list of 1000": func(group string, _ int) { send(http.MethodGet, in("many", group), "", http.StatusOK) },
		"list of 10 of 10000 by a field": func(group string, _ int) {
			send(http.MethodGet, in("crowd", group)+"?fieldSelector=spec.size%3Dsmall", "", http.StatusOK)
		},
		"initial events of 1000": func(group string, _ int) {
			send(http.MethodGet, in("many", group)+
				"?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", "", http.StatusOK)
		},
		"create and delete": func(group string, _ int) {
			send(http.MethodPost, path(group), crate(group, "one-more", "label"), http.StatusCreated)
			send(http.MethodDelete, path(group)+"/one-more", "", http.StatusOK)
		},
		"patch": func(group string, n int) {
			send(http.MethodPatch, path(group)+"/c9", fmt.Sprintf(`{"spec":{"boxes":%d}}`, 1+n%9), http.StatusOK)
		},
	} {
		b.Run(name, func(b *testing.B) {
			const round = 200
			var ratios []float64
			var used [2]time.Duration
			var allocated [2]uint64
			for n := 0; n < b.N; n += round {
				var took [2]time.Duration
				for i, group := range []string{typedGroup, customGroup} {
					before := totalAlloc()
					began := time.Now()
					for j := range round {
						request(group, n+j)
					}
					took[i] = time.Since(began)
					used[i] += took[i]
					allocated[i] += totalAlloc() - before
				}
				ratios = append(ratios, float64(took[1])/float64(took[0]))
			}
			slices.Sort(ratios)
			rounds := float64(len(ratios) * round)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(used[0].Microseconds())/rounds, "us/typed")
			b.ReportMetric(float64(used[1].Microseconds())/rounds, "us/custom")
			b.ReportMetric(float64(allocated[0])/rounds/1024, "KiB/typed")
			b.ReportMetric(float64(allocated[1])/rounds/1024, "KiB/custom")
			b.ReportMetric(ratios[len(ratios)/2], "custom/typed")
		})
	}
}

// watchRecorder ends a watch when its initial events are complete.
type watchRecorder struct {
	*httptest.ResponseRecorder
	end context.CancelFunc
}

func (w *watchRecorder) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(metav1.InitialEventsAnnotationKey)) {
		w.end()
	}
	return w.ResponseRecorder.Write(p)
}

// CloseNotify is required by upstream for a writer that is flushed.
func (w *watchRecorder) CloseNotify() <-chan bool { return nil }

// totalAlloc returns the number of bytes that the process has allocated so far.
func totalAlloc() uint64 {
	var figures runtime.MemStats
	runtime.ReadMemStats(&figures)
	return figures.TotalAlloc
}

const typedGroup, customGroup = "marked.shop.example.com", "custom.example.com"

// crates runs a server that has crates both as a typed kind and as custom resources of another group, and returns a
// function that sends requests to it.
func crates(b *testing.B) func(method, path, body string, code int) {
	b.Helper()
	server := cluster()
	server.ControlPlane = controlplane.New(controlplane.Options{})
	server.Groups = []annex.Group{
		{
			Name:  typedGroup,
			Kinds: []annex.Kind{annex.KindOf[markedv1.Crate, markedv1.CrateList]("crates", markedv1.API).IndexFields("spec.size")},
		},
	}
	tokens := filepath.Join(b.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,root,1,system:masters\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	instance, err := annex.New(b.Context(), server, annex.Options{
		Storage:            memory.Storage(),
		Listen:             "127.0.0.1:0",
		TokenAuthFile:      tokens,
		AuthorizationModes: []annex.AuthorizationMode{annex.AuthorizationAlwaysAllow},
	})
	if err != nil {
		b.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(b.Context(), func() { close(ready) }) }()
	b.Cleanup(func() {
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	<-ready

	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal([]byte(markedv1.API().CustomResources()["Crate"]), definition); err != nil {
		b.Fatal(err)
	}
	definition.Spec.Group, definition.Name = customGroup, definition.Spec.Names.Plural+"."+customGroup
	config, err := instance.ClientConfig()
	if err != nil {
		b.Fatal(err)
	}
	clients := clientset.NewForConfigOrDie(config)
	if _, err := clients.ApiextensionsV1().CustomResourceDefinitions().Create(b.Context(), definition, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	do := func(method, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		contentType := "application/json"
		if method == http.MethodPatch {
			contentType = "application/merge-patch+json"
		}
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Authorization", "Bearer secret")
		r.Header.Set("User-Agent", "kubectl/v1.37.2 (linux/amd64) kubernetes/abcdef0")
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		w := &watchRecorder{httptest.NewRecorder(), cancel}
		instance.Handler().ServeHTTP(w, r.WithContext(ctx))
		return w.ResponseRecorder
	}
	testwait.Until(b, "the definition is served", func() bool {
		return do(http.MethodGet, "/apis/"+customGroup+"/v1/crates", "").Code == http.StatusOK
	})
	return func(method, path, body string, code int) {
		if w := do(method, path, body); w.Code != code {
			b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
}

// BenchmarkStart measures the time that annextest needs to start a control plane until it is ready, while all
// earlier ones keep running.
//
//	go test ./internal/testing/apitest/controlplane -run xxx -bench Start -benchtime 8x
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		annextest.Start(b, cluster())
	}
}
