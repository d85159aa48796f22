package annex

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
)

// Env is the server from the view of a hook or a controller. It may be used concurrently, once the server is started.
type Env struct {
	definition *define.Server
	informers  *informer.Set
	client     *rest.Config
	roots      func() []byte
}

// ClientConfig returns a configuration for clients of this server, with all rights and without a network in between.
// Each call returns a copy.
func (e *Env) ClientConfig() *rest.Config { return rest.CopyConfig(e.client) }

// RootCA returns the current certificates by which clients verify this server, in PEM. It is empty for an aggregated
// server, whose clients verify the cluster in front of it.
func (e *Env) RootCA() []byte { return e.roots() }

// Lister reads the objects of a kind. Get and List read a cache that a watch keeps current: a read costs no request,
// and may be a moment behind the latest write. GetLatest and ListLatest read the storage: they see every write
// acknowledged before the call, by this server or by a replica with the same storage, and cost a request of the server
// to itself.
type Lister[T any] struct {
	informer *informer.Informer
}

// ListerFor returns a lister of the kind and version of the Go type T on this server. It returns an error if the
// server serves no such type. Listers of the same type share one cache, which is filled when the server starts. Call
// ListerFor when the hook is made, not when it runs: it returns an error once the server runs. It therefore does so in
// a controller, too, which has its own informers.
func ListerFor[T any, PT object[T]](e *Env) (*Lister[T], error) {
	t := reflect.TypeFor[T]()
	for _, k := range e.definition.Kinds() {
		for _, v := range k.Versions {
			if v.Type == t && !v.Unserved {
				if verbs := k.Verbs(); k.Primary().Source != nil && !slices.Contains(verbs, "watch") {
					return nil, fmt.Errorf("lister of %s: %s cannot be watched; give its source Poll or Changes", t, k.GroupResource())
				}
				i, err := e.informers.For(k, v)
				if err != nil {
					return nil, fmt.Errorf("lister of %s: %w", t, err)
				}
				return &Lister[T]{i}, nil
			}
		}
	}
	return nil, fmt.Errorf("%s is not served by server %s", t, e.definition.Name)
}

// syncTimeout bounds how long a read waits for the first filling of the cache.
const syncTimeout = 10 * time.Second

// Get returns one object; namespace is empty for cluster-scoped kinds. It waits until the cache is filled. An error
// matches apierrors.IsNotFound if the object does not exist; any other error means that the cache was not filled in
// time. The object is shared and read-only.
func (l *Lister[T]) Get(ctx context.Context, namespace, name string) (*T, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	obj, ok := l.informer.Get(namespace, name)
	if !ok {
		return nil, apierrors.NewNotFound(l.informer.Resource(), name)
	}
	return any(obj).(*T), nil
}

// List returns the objects that match the selector, or all if it is nil, in all namespaces if namespace is empty, in
// no particular order. It waits until the cache is filled, and returns an error if that takes too long. The objects
// are shared and read-only.
func (l *Lister[T]) List(ctx context.Context, namespace string, selector labels.Selector) ([]*T, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	var all []*T
	l.informer.List(namespace, everythingIfNil(selector), func(obj runtime.Object) { all = append(all, any(obj).(*T)) })
	return all, nil
}

// GetLatest is Get from the storage. The caller owns the object. The server must be started.
func (l *Lister[T]) GetLatest(ctx context.Context, namespace, name string) (*T, error) {
	obj, err := l.informer.GetLatest(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return any(obj).(*T), nil
}

// ListLatest is List from the storage: all objects at one moment after the call. The caller owns them. The server must
// be started.
//
// A decision about these objects still precedes the write, and another write may happen in between. Use AdmitCreate
// for creates that need an exact decision.
func (l *Lister[T]) ListLatest(ctx context.Context, namespace string, selector labels.Selector) ([]*T, error) {
	var all []*T
	err := l.informer.ListLatest(ctx, namespace, everythingIfNil(selector), func(obj runtime.Object) { all = append(all, any(obj).(*T)) })
	return all, err
}

func everythingIfNil(selector labels.Selector) labels.Selector {
	if selector == nil {
		return labels.Everything()
	}
	return selector
}

func (l *Lister[T]) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, syncTimeout, errors.New("timed out"))
	defer cancel()
	if err := l.informer.WaitForSync(ctx); err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("waiting for the cache of %s: %v", l.informer.Resource(), err))
	}
	return nil
}
