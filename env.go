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

// Env is the interface of a server to its hooks and controllers. It may be used concurrently once the server is
// started.
type Env struct {
	definition *define.Server
	informers  *informer.Set
	client     *rest.Config
	roots      func() []byte
}

// ClientConfig returns a configuration for clients of this server. They have all permissions, and call the handler
// without a network connection. Each call returns a copy.
func (e *Env) ClientConfig() *rest.Config { return rest.CopyConfig(e.client) }

// RootCA returns the current certificates, in PEM, by which clients verify this server. It is empty for an
// aggregated server, whose clients verify the cluster instead.
func (e *Env) RootCA() []byte { return e.roots() }

// Lister reads the objects of a kind. Get and List read a watch-based cache: a read costs no request, and may lag
// behind the latest write. GetLatest and ListLatest read the storage: they see every write that was answered before
// the call, by this server or by a replica with the same storage, and cost a request of the server to itself.
type Lister[T any] struct {
	informer *informer.Informer
}

// ListerFor returns a lister of the kind and version that the Go type T represents on this server. It returns an
// error if the server does not serve T. Listers of the same type share one cache, which is filled when the server
// starts: call ListerFor when the hook is made, not when it is called. Once the server runs, ListerFor returns an
// error. That includes controllers, which have informers of their own.
func ListerFor[T any, PT object[T]](e *Env) (*Lister[T], error) {
	t := reflect.TypeFor[T]()
	for _, k := range e.definition.Kinds() {
		for _, v := range k.Versions {
			if v.Type == t && !v.Unserved {
				if verbs := k.Verbs(); k.Primary().Source != nil && !slices.Contains(verbs, "watch") {
					return nil, fmt.Errorf("lister of %s: %s cannot be watched: add Poll or Changes to its source", t, k.GroupResource())
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

// Get returns one object; namespace is empty for cluster-scoped kinds. It waits until the cache is filled, for ten
// seconds at most. If there is no such object, the error matches apierrors.IsNotFound; any other error means that
// the cache could not be filled in time. The object is shared and must not be changed.
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

// List returns the objects that match the selector, all if it is nil, in the namespace, or in all namespaces if
// that is empty. The order is unspecified. It waits until the cache is filled; an error means that the cache could
// not be filled in time. The objects are shared and must not be changed.
func (l *Lister[T]) List(ctx context.Context, namespace string, selector labels.Selector) ([]*T, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	var all []*T
	l.informer.List(namespace, everythingIfNil(selector), func(obj runtime.Object) { all = append(all, any(obj).(*T)) })
	return all, nil
}

// GetLatest reads an object from the storage, without the cache. The caller owns the object. The server must be
// started.
func (l *Lister[T]) GetLatest(ctx context.Context, namespace, name string) (*T, error) {
	obj, err := l.informer.GetLatest(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return any(obj).(*T), nil
}

// ListLatest lists objects from the storage, without the cache: all objects as of one moment after the call. The
// caller owns them. The server must be started.
//
// A decision based on the result is not atomic with a later write: another write may come in between. AdmitCreate
// makes such decisions atomic for creates.
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
