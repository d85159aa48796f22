package registry

import (
	"fmt"
	"reflect"

	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// Subresourcer is a storage with subresources. Subresources returns them by name.
type Subresourcer interface {
	Subresources() map[string]rest.Storage
}

// newSubresource returns a kind that is served by a custom storage.
func newSubresource(k *define.Kind, options Options) (*Kind, error) {
	main, err := k.CustomStorage(options.Env, k, newKindTable(k))
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", k.GroupResource(), err)
	}
	kind := &Kind{Definition: k, own: map[string]rest.Storage{}}
	if objects.IsNil(main) {
		return nil, fmt.Errorf("storage of %s: CustomStorage returned no storage", k.GroupResource())
	}
	// From here on, this function must destroy main on failure, because the caller of NewKind cannot.
	if err := kind.addSubresource(main); err != nil {
		main.Destroy()
		return nil, fmt.Errorf("storage of %s: %w", k.GroupResource(), err)
	}
	return kind, nil
}

func (k *Kind) addSubresource(main rest.Storage) error {
	if err := checkMain(k.Definition, main); err != nil {
		return err
	}
	k.own[k.Definition.Resource] = main
	s, ok := main.(Subresourcer)
	if !ok {
		return nil
	}
	for name, sub := range s.Subresources() {
		if objects.IsNil(sub) {
			return fmt.Errorf("subresource %q of %T is nil", name, main)
		}
		if objects.IsNil(sub.New()) {
			return fmt.Errorf("New of %T, subresource %q, returns nil", sub, name)
		}
		k.own[k.Definition.Resource+"/"+name] = sub
	}
	return nil
}

// checkMain detects mistakes in a storage that the API machinery would not report: it would serve nothing, or the wrong
// objects.
func checkMain(k *define.Kind, main rest.Storage) error {
	object := main.New()
	if objects.IsNil(object) {
		return fmt.Errorf("New of %T returns nil: embed the annex.RESTBase that CustomStorage provides", main)
	}
	if got, want := reflect.TypeOf(object), reflect.PointerTo(k.Hub().Type); got != want {
		return fmt.Errorf("New of %T returns %v, not the hub %v", main, got, want)
	}
	scoper, ok := main.(rest.Scoper)
	switch {
	case !ok:
		return fmt.Errorf("%T has no NamespaceScoped: embed annex.RESTBase", main)
	case scoper.NamespaceScoped() && k.ClusterScoped:
		return fmt.Errorf("%T is namespaced, but the kind is ClusterScoped", main)
	case !scoper.NamespaceScoped() && !k.ClusterScoped:
		return fmt.Errorf("%T is cluster-scoped, but the kind is not ClusterScoped", main)
	}
	if _, ok := main.(rest.SingularNameProvider); !ok {
		return fmt.Errorf("%T has no GetSingularName: embed annex.RESTBase", main)
	}
	for _, name := range []struct {
		method   string
		declared bool
		provided bool
	}{
		{"ShortNames", len(k.ShortNames) > 0, provides[rest.ShortNamesProvider](main)},
		{"Categories", len(k.Categories) > 0, provides[rest.CategoriesProvider](main)},
	} {
		if name.declared && !name.provided {
			return fmt.Errorf("%s has no effect: %T has no %s; embed annex.RESTBase", name.method, main, name.method)
		}
	}
	return checkVerbs(k, main)
}

// checkVerbs detects methods with the name of a verb but another signature.
func checkVerbs(k *define.Kind, main rest.Storage) error {
	if _, ok := main.(rest.Connecter); ok {
		return fmt.Errorf("%T has Connect, which only subresources support", main)
	}
	if _, ok := main.(rest.Lister); !ok && has(main, "List") && has(main, "NewList") && !has(main, "ConvertToTable") {
		return fmt.Errorf("%T has List but no ConvertToTable: embed annex.RESTBase", main)
	}
	served := 0
	for _, verb := range []struct {
		method string
		is     bool
		want   string
	}{
		{"Get", provides[rest.Getter](main), "rest.Getter"},
		{"List", provides[rest.Lister](main), "rest.Lister"},
		{"Create", provides[rest.Creater](main), "rest.Creater"},
		{"Update", provides[rest.Updater](main), "rest.Updater"},
		{"Delete", provides[rest.GracefulDeleter](main), "rest.GracefulDeleter"},
		{"DeleteCollection", provides[rest.CollectionDeleter](main), "rest.CollectionDeleter"},
		{"Watch", provides[rest.Watcher](main), "rest.Watcher"},
	} {
		switch {
		case verb.is:
			served++
		case has(main, verb.method):
			return fmt.Errorf("method %s of %T does not make it a %s: compare the signatures", verb.method, main, verb.want)
		}
	}
	if served == 0 {
		return fmt.Errorf(
			"%T has no verb: implement one of rest.Getter, Lister, Creater, Updater, GracefulDeleter, CollectionDeleter, Watcher",
			main,
		)
	}
	if l, ok := main.(rest.Lister); ok {
		if got, want := reflect.TypeOf(l.NewList()), reflect.PointerTo(k.Hub().ListType); got != want {
			return fmt.Errorf("NewList of %T returns %v, not the hub's list %v", main, got, want)
		}
	}
	return nil
}

func provides[T any](s rest.Storage) bool {
	_, ok := s.(T)
	return ok
}

func has(s rest.Storage, method string) bool {
	_, ok := reflect.TypeOf(s).MethodByName(method)
	return ok
}
