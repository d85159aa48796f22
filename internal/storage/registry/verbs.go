package registry

import (
	"context"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// reads is the part of the main endpoint that every virtual kind has.
type reads interface {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.StorageWithReadiness
	rest.StorageVersionProvider
	rest.ResetFieldsStrategy
	rest.Lister
	rest.Getter
}

// The other parts have one verb each. They are narrower than the interfaces of package rest, which share methods and
// therefore cannot be embedded side by side.
type (
	creates interface {
		Create(ctx context.Context, obj runtime.Object, valid rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error)
	}
	updates interface {
		Update(
			ctx context.Context,
			name string,
			info rest.UpdatedObjectInfo,
			create rest.ValidateObjectFunc,
			update rest.ValidateObjectUpdateFunc,
			allowCreate bool,
			options *metav1.UpdateOptions,
		) (runtime.Object, bool, error)
	}
	deletes interface {
		rest.GracefulDeleter
		rest.CollectionDeleter
		rest.MayReturnFullObjectDeleter
	}
	watches interface {
		Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error)
	}
)

// withVerbs returns a storage with exactly the verbs that a source supports. The API machinery derives the verbs of a
// resource, in discovery and in its paths, from the methods of its storage, so there is a type for every combination.
func withVerbs(m *mainREST, s *define.Source) rest.Storage {
	type can struct{ create, update, delete, watch bool }
	switch (can{s.Create != nil, s.Update != nil, s.Delete != nil, s.Watched()}) {
	case can{}:
		return struct{ reads }{m}
	case can{watch: true}:
		return struct {
			reads
			watches
		}{m, m}
	case can{delete: true}:
		return struct {
			reads
			deletes
		}{m, m}
	case can{delete: true, watch: true}:
		return struct {
			reads
			deletes
			watches
		}{m, m, m}
	case can{update: true}:
		return struct {
			reads
			updates
		}{m, m}
	case can{update: true, watch: true}:
		return struct {
			reads
			updates
			watches
		}{m, m, m}
	case can{update: true, delete: true}:
		return struct {
			reads
			updates
			deletes
		}{m, m, m}
	case can{update: true, delete: true, watch: true}:
		return struct {
			reads
			updates
			deletes
			watches
		}{m, m, m, m}
	case can{create: true}:
		return struct {
			reads
			creates
		}{m, m}
	case can{create: true, watch: true}:
		return struct {
			reads
			creates
			watches
		}{m, m, m}
	case can{create: true, delete: true}:
		return struct {
			reads
			creates
			deletes
		}{m, m, m}
	case can{create: true, delete: true, watch: true}:
		return struct {
			reads
			creates
			deletes
			watches
		}{m, m, m, m}
	case can{create: true, update: true}:
		return struct {
			reads
			creates
			updates
		}{m, m, m}
	case can{create: true, update: true, watch: true}:
		return struct {
			reads
			creates
			updates
			watches
		}{m, m, m, m}
	case can{create: true, update: true, delete: true}:
		return struct {
			reads
			creates
			updates
			deletes
		}{m, m, m, m}
	default:
		return m
	}
}
