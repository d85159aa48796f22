package workloads

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// listed makes informers list instead of waiting for the initial events of a watch.
type listed struct{ *cache.ListWatch }

func (listed) IsWatchListSemanticsUnSupported() bool { return true }

// countedNodes makes informers of two nodes, and counts their lists.
func countedNodes(lists *atomic.Int32) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
	return func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(listed{&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				lists.Add(1)
				return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{
					{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}},
				}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
		}}, &corev1.Node{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

func TestIdleInformers_listFromTheFirstRead(t *testing.T) {
	t.Parallel()
	var lists atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	factory := newIdleInformers(nil, ctx.Done())
	informer := factory.InformerFor(&corev1.Node{}, countedNodes(&lists))
	if again := factory.InformerFor(&corev1.Node{}, countedNodes(&lists)); again != informer {
		t.Error("two informers of one kind")
	}
	lister := corelisters.NewNodeLister(informer.GetIndexer())
	factory.StartWithContext(ctx)
	if !informer.HasSynced() || lists.Load() != 0 {
		t.Errorf("idle: synced %v, %d lists", informer.HasSynced(), lists.Load())
	}
	if got, err := lister.Get("b"); err != nil || got.Name != "b" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := lister.Get("c"); err == nil {
		t.Error("found a node that does not exist")
	}
	if !informer.HasSynced() || lists.Load() != 1 {
		t.Errorf("after a read: synced %v, %d lists", informer.HasSynced(), lists.Load())
	}
	cancel()
	factory.Shutdown()
	if !informer.IsStopped() {
		t.Error("the informer runs after Shutdown")
	}
}

func TestIdleInformers_handler_beginsAtTheStart(t *testing.T) {
	t.Parallel()
	for name, add := range map[string]func(cache.SharedIndexInformer, cache.ResourceEventHandler) error{
		"AddEventHandler": func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
			_, err := i.AddEventHandler(h)
			return err
		},
		"AddEventHandlerWithResyncPeriod": func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
			_, err := i.AddEventHandlerWithResyncPeriod(h, time.Hour)
			return err
		},
		"AddEventHandlerWithOptions": func(i cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
			_, err := i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lists atomic.Int32
			ctx, cancel := context.WithCancel(t.Context())
			factory := newIdleInformers(nil, ctx.Done())
			informer := factory.InformerFor(&corev1.Node{}, countedNodes(&lists))
			added := make(chan string, 2)
			if err := add(informer, cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { added <- obj.(*corev1.Node).Name }}); err != nil {
				t.Fatal(err)
			}
			if informer.HasSynced() || lists.Load() != 0 {
				t.Error("the informer has begun before its factory")
			}
			factory.StartWithContext(ctx)
			factory.StartWithContext(ctx) // changes nothing
			<-added
			<-added
			cancel()
			factory.Shutdown()
			if lists.Load() != 1 {
				t.Errorf("%d lists", lists.Load())
			}
		})
	}
}

// A reader must not wait for ever for a server that has stopped before its informers began.
func TestIdleInformers_stopped_readerReturns(t *testing.T) {
	t.Parallel()
	var lists atomic.Int32
	stopped := make(chan struct{})
	factory := newIdleInformers(nil, stopped)
	indexer := factory.InformerFor(&corev1.Node{}, countedNodes(&lists)).GetIndexer()
	read := make(chan int)
	go func() { read <- len(indexer.List()) }()
	close(stopped)
	if n := <-read; n != 0 || lists.Load() != 0 {
		t.Errorf("%d nodes, %d lists", n, lists.Load())
	}
	factory.Shutdown()
}
