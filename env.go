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

// Env is the server as a hook or a controller sees it. It may be used
// concurrently, once the server is started.
type Env struct {
	definition *define.Server
	informers  *informer.Set
	client     *rest.Config
	roots      func() []byte
}

// ClientConfig returns a configuration for clients of this very server, with all
// rights and without a network in between. Each call returns a copy.
func (e *Env) ClientConfig() *rest.Config { return rest.CopyConfig(e.client) }

// RootCA returns the certificates by which clients verify this server, in PEM, as they are now. It
// is empty for an aggregated server, whose clients verify the cluster that they reach it by.
func (e *Env) RootCA() []byte { return e.roots() }

// Lister reads the objects of a kind. Get and List read a cache that a watch keeps
// current: a read costs no request, and may be a moment behind the latest write.
// GetLatest and ListLatest read what is stored: they see every write that was answered
// before they were called, by this server or by a replica with the same storage, and
// cost a request of the server to itself.
type Lister[T any] struct {
	informer *informer.Informer
}

// ListerFor returns a lister of the kind and version that the Go type T stands for
// on this server. It is an error if the server serves no such type. Listers of the
// same type share one cache, which is filled when the server starts: ask for a lister
// when the hook is made, not when it is called. It is an error once the server runs,
// and so in a controller, which has informers of its own.
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

// Get returns one object, with an empty namespace for cluster-scoped kinds. It
// waits until the cache is filled. An error matching apierrors.IsNotFound says that
// there is no such object; any other that the cache could not be filled in time.
// The object is shared and must not be changed.
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

// List returns the objects that the selector matches, all if it is nil, in all
// namespaces if namespace is empty, in no particular order. It waits until the cache is
// filled; an error says that this did not happen in time. The objects are shared and must
// not be changed.
func (l *Lister[T]) List(ctx context.Context, namespace string, selector labels.Selector) ([]*T, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	var all []*T
	l.informer.List(namespace, everythingIfNil(selector), func(obj runtime.Object) { all = append(all, any(obj).(*T)) })
	return all, nil
}

// GetLatest is Get of what is stored. The object is the caller's own. The server must be
// started.
func (l *Lister[T]) GetLatest(ctx context.Context, namespace, name string) (*T, error) {
	obj, err := l.informer.GetLatest(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return any(obj).(*T), nil
}

// ListLatest is List of what is stored: all objects as they are at one moment after the
// call. They are the caller's own. The server must be started.
//
// What is decided upon them is still decided before the write: another write may come in
// between. For creates that must not be so, AdmitCreate is exact.
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
