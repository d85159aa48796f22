package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"example.com/wardle/apis/wardle/v1alpha1"
	"example.com/wardle/apis/wardle/v1beta1"

	"github.com/annexapi/annex/api"
)

// clients are informers of all kinds on the flunders of one server.
type clients struct {
	observers []*observer
	traffic   []*traffic
	manager   *manager
	// inProtobuf are the media types that the informers of protobuf received.
	inProtobuf []*media
}

// startClients returns when all informers have synced.
func startClients(ctx context.Context, t *testing.T, config *rest.Config, l *ledger) *clients {
	t.Helper()
	c := &clients{}
	watching := func(name string, make func(*rest.Config) cache.SharedIndexInformer) {
		config, traffic := countingTraffic(config, flundersBeta.Resource)
		i := make(config)
		c.observers = append(c.observers, observe(t, name, i))
		c.traffic = append(c.traffic, traffic)
		background(ctx, t, func(ctx context.Context) error {
			i.RunWithContext(ctx)
			return nil
		})
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			t.Fatalf("%s did not sync", name)
		}
	}
	watching("dynamic informer on v1beta1", func(config *rest.Config) cache.SharedIndexInformer {
		factory := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0)
		return factory.ForResource(flundersBeta).Informer()
	})
	watching("dynamic informer on v1alpha1", func(config *rest.Config) cache.SharedIndexInformer {
		factory := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0)
		return factory.ForResource(flundersAlpha).Informer()
	})
	watching("metadata informer", func(config *rest.Config) cache.SharedIndexInformer {
		factory := metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(config), 0)
		return factory.ForResource(flundersBeta).Informer()
	})
	inProtobuf := func(version api.Facts, example runtime.Object) {
		watching("informer of protobuf on "+version.GroupVersion.Version, func(config *rest.Config) cache.SharedIndexInformer {
			config, media := withMedia(config)
			c.inProtobuf = append(c.inProtobuf, media)
			client := typedClient(t, config, version, protobufType, protobufType)
			flunders := cache.NewListWatchFromClient(client, flundersBeta.Resource, metav1.NamespaceAll, fields.Everything())
			return cache.NewSharedIndexInformer(flunders, example, 0, cache.Indexers{})
		})
	}
	inProtobuf(v1beta1.API(), &v1beta1.Flunder{})
	inProtobuf(v1alpha1.API(), &v1alpha1.Flunder{})
	counted, traffic := countingTraffic(config, flundersBeta.Resource)
	c.manager = startManager(ctx, t, counted, l)
	i, err := c.manager.GetCache().GetInformer(ctx, &v1beta1.Flunder{})
	if err != nil {
		t.Fatal(err)
	}
	c.observers = append(c.observers, observe(t, "controller-runtime", i))
	c.traffic = append(c.traffic, traffic)
	return c
}

func (c *clients) awaitVersion(ctx context.Context, t *testing.T, want int64) {
	t.Helper()
	for _, o := range c.observers {
		if err := o.awaitVersion(ctx, want); err != nil {
			t.Fatal(err)
		}
	}
}

// check fails the test unless all clients saw everything once and ended with the server's objects.
func (c *clients) check(ctx context.Context, t *testing.T, config *rest.Config, l *ledger) {
	t.Helper()
	list, err := dynamic.NewForConfigOrDie(config).Resource(flundersBeta).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{}
	for _, obj := range list.Items {
		want[obj.GetName()] = version(&obj)
	}
	for i, o := range c.observers {
		o.check(t, l)
		c.traffic[i].checkOneStart(t, o.name)
		t.Logf("%s: %d events, asked for %s", o.name, len(o.all()), strings.Join(c.traffic[i].all(), ", "))
		if o.store == nil {
			continue
		}
		got := o.store.List()
		if len(got) != len(want) {
			t.Errorf("%s: has %d objects, the server %d", o.name, len(got), len(want))
		}
		for _, obj := range got {
			if m := obj.(metav1.Object); version(m) != want[m.GetName()] {
				t.Errorf("%s: has %s at version %d, the server at %d", o.name, m.GetName(), version(m), want[m.GetName()])
			}
		}
	}
}

func TestInformers_seeEveryWriteOnce(t *testing.T) {
	s := startServer(t, "wardle")
	config := s.config(t)
	l := newLedger()
	mark(t.Context(), t, config, l)
	c := startClients(t.Context(), t, config, l)

	began := time.Now()
	writing, stop := context.WithTimeout(t.Context(), *soak)
	defer stop()
	if err := startWriters(writing, t, config, l, 8, true)(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.awaitVersion(ctx, t, mark(ctx, t, config, l))
	c.manager.awaitIdle(ctx, t)
	c.awaitVersion(ctx, t, mark(ctx, t, config, l))
	c.check(ctx, t, config, l)
	for _, media := range c.inProtobuf {
		media.check(t, "", protobufType)
	}
	t.Logf("%s in %s: %s", l, took.Round(time.Millisecond), c.manager)
}

func TestInformers_resumeAfterRestart(t *testing.T) {
	for name, end := range map[string]func(*server, *testing.T){
		"terminated": (*server).stop,
		"killed":     (*server).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServerOn(t, "wardle", restartPort(t))
			config := s.config(t)
			l := newLedger()
			mark(t.Context(), t, config, l)
			c := startClients(t.Context(), t, config, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for range 2 {
				wait := startWriters(ctx, t, config, l, 8, false)
				c.awaitVersion(ctx, t, mark(ctx, t, config, l)+100)
				end(s, t)
				if err := wait(); err != nil {
					t.Fatal(err)
				}
				s.start(t)
				// Written while most clients still wait for their next attempt.
				mark(ctx, t, config, l)
			}
			c.awaitVersion(ctx, t, mark(ctx, t, config, l))
			c.check(ctx, t, config, l)
			t.Log(l)
		})
	}
}
