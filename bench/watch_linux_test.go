package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/storage"
)

// lap is the approximate number of updates that the writer may be ahead of the slowest watcher. A watch cache ends
// much slower watchers.
const lap = 8

// BenchmarkWatch updates one object and makes upstream's watch handler encode every event as JSON for every watcher
// and write it to a connection that accepts everything. The processor time of the updates themselves is part of an
// event's.
func BenchmarkWatch(b *testing.B) {
	// Without a watch cache, every watcher is a watch on etcd, which is not how a server is run.
	forEach(b, []string{memoryBackend, embeddedBackend, cachedBackend}, func(b *testing.B, s *system) {
		opened := s.pods(b, pods())
		for _, watchers := range []int{1, 100, 1000} {
			b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
				updates := scaled(map[int]int{1: 4_000, 100: 4_000, 1000: 1_000}[watchers])
				fanOut(b, s, opened, watchers, updates)
			})
		}
	})
}

func fanOut(b *testing.B, s *system, opened storage.Interface, watchers, updates int) {
	pod := newPod(watchers, 1<<10)
	podKey, created := key(pod.Namespace, pod.Name), &example.Pod{}
	if err := opened.Create(b.Context(), podKey, pod, created, 0); err != nil {
		b.Fatal(err)
	}
	updates -= updates % lap
	laps := make([]sync.WaitGroup, updates/lap)
	for i := range laps {
		laps[i].Add(watchers)
	}
	var watching sync.WaitGroup
	for range watchers {
		opts := everything(0)
		opts.ResourceVersion = created.ResourceVersion
		w, err := opened.Watch(b.Context(), prefix+"/", opts)
		if err != nil {
			b.Fatal(err)
		}
		watching.Go(func() {
			defer w.Stop()
			client := &client{laps: laps, header: http.Header{}, done: w.Stop}
			watchServer(w).HandleHTTP(client, httptest.NewRequestWithContext(b.Context(), http.MethodGet, prefix, nil))
			if client.events != updates {
				b.Errorf("a watch ended after %d of %d events", client.events, updates)
			}
			client.leave()
		})
	}
	m := s.measure(b)
	for i := range updates {
		if i%lap == 0 && i >= 2*lap {
			laps[i/lap-2].Wait()
		}
		update := storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
			object.(*example.Pod).Annotations["example.com/checksum"] = strconv.Itoa(i)
			return object, nil
		})
		if err := opened.GuaranteedUpdate(b.Context(), podKey, &example.Pod{}, false, nil, update, nil); err != nil {
			b.Fatal(err)
		}
	}
	watching.Wait()
	m.done("event", updates*watchers)
}

// BenchmarkWatchOne has a thousand watches, each of the objects of one node, like a kubelet's. An update concerns one
// of them. The field is indexed: the watch cache finds the watch by it.
func BenchmarkWatchOne(b *testing.B) {
	const watchers = 1000
	forEach(b, []string{memoryBackend, embeddedBackend, cachedBackend}, func(b *testing.B, s *system) {
		resource := indexedPods()
		resource.Triggers = storage.IndexerFuncs{
			"spec.nodeName": func(object runtime.Object) string { return object.(*example.Pod).Spec.NodeName },
		}
		opened := s.pods(b, resource)
		seen := make(chan struct{}, watchers)
		var watching sync.WaitGroup
		ctx, stop := context.WithCancel(b.Context())
		for i := range watchers {
			pod := newPod(i, 1<<10)
			pod.Spec.NodeName = fmt.Sprint("node-", i)
			created := &example.Pod{}
			if err := opened.Create(ctx, key(pod.Namespace, pod.Name), pod, created, 0); err != nil {
				b.Fatal(err)
			}
			opts := everything(0)
			opts.ResourceVersion = created.ResourceVersion
			opts.Predicate.Field = fields.OneTermEqualSelector("spec.nodeName", pod.Spec.NodeName)
			opts.Predicate.IndexFields = []string{"spec.nodeName"}
			w, err := opened.Watch(ctx, prefix+"/", opts)
			if err != nil {
				b.Fatal(err)
			}
			watching.Go(func() {
				defer w.Stop()
				for range w.ResultChan() {
					seen <- struct{}{}
				}
			})
		}
		b.Run("watchers=1000", func(b *testing.B) {
			updates := scaled(2_000)
			m := s.measure(b)
			for i := range updates {
				pod := newPod(i%watchers, 0)
				update := storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
					object.(*example.Pod).Annotations["example.com/checksum"] = fmt.Sprint("update-", i)
					return object, nil
				})
				if err := opened.GuaranteedUpdate(ctx, key(pod.Namespace, pod.Name), &example.Pod{}, false, nil, update, nil); err != nil {
					b.Fatal(err)
				}
				<-seen
			}
			m.done("update", updates)
		})
		stop()
		watching.Wait()
	})
}

// watchServer serves a watch as the API's handler does.
func watchServer(w watch.Interface) *handlers.WatchServer {
	factory := serializer.NewCodecFactory(newScheme())
	info, _ := runtime.SerializerInfoForMediaType(factory.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return &handlers.WatchServer{
		Watching:        w,
		Scope:           &handlers.RequestScope{Resource: examplev1.SchemeGroupVersion.WithResource("pods")},
		MediaType:       runtime.ContentTypeJSON,
		Framer:          info.StreamSerializer.Framer,
		Encoder:         factory.EncoderForVersion(info.StreamSerializer.Serializer, examplev1.SchemeGroupVersion),
		EmbeddedEncoder: factory.EncoderForVersion(info.Serializer, examplev1.SchemeGroupVersion),
		TimeoutFactory:  noTimeout{},
	}
}

type noTimeout struct{}

func (noTimeout) TimeoutCh() (<-chan time.Time, func() bool) {
	return nil, func() bool { return false }
}

// client receives the events of one watch, one in each call of Write.
type client struct {
	header http.Header
	laps   []sync.WaitGroup
	events int
	done   func()
}

var (
	_ http.ResponseWriter = (*client)(nil)
	_ http.Flusher        = (*client)(nil)
)

func (c *client) Header() http.Header { return c.header }
func (c *client) WriteHeader(int)     {}
func (c *client) Flush()              {}

func (c *client) Write(p []byte) (int, error) {
	if c.events++; c.events%lap == 0 {
		c.laps[c.events/lap-1].Done()
	}
	if c.events == len(c.laps)*lap {
		c.done()
	}
	return len(p), nil
}

// leave counts the events that a client whose watch has ended early will not get, so that the benchmark does not wait
// for them.
func (c *client) leave() {
	for ; c.events < len(c.laps)*lap; c.events++ {
		if (c.events+1)%lap == 0 {
			c.laps[(c.events+1)/lap-1].Done()
		}
	}
}
