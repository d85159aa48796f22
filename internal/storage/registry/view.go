package registry

import (
	"context"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// newView returns the endpoint of a view. A view with options must implement another interface than a view without.
func newView(k *Kind, s *define.Subresource, v *define.Version) rest.Storage {
	view := view{kind: k, sub: s, version: v}
	if s.Answer == k.Definition.Hub().Type {
		view.TableConvertor = k.store
	} else {
		view.TableConvertor = rest.NewDefaultTableConvertor(k.Definition.GroupResource())
	}
	if s.Object == nil {
		return &plainViewREST{view}
	}
	return &viewREST{view}
}

// view is a custom subresource that is read.
type view struct {
	rest.TableConvertor
	kind    *Kind
	sub     *define.Subresource
	version *define.Version
}

// New returns an empty result, by which discovery names the kind of the subresource.
func (r *view) New() runtime.Object {
	return reflect.New(r.sub.Answer).Interface().(runtime.Object)
}

// Destroy does nothing: the main endpoint destroys the storage.
func (r *view) Destroy() {}

func (r *view) ProducesMIMETypes(string) []string { return nil }

func (r *view) ProducesObject(string) any { return r.kind.sample(r.sub.Answer, r.version) }

func (r *view) look(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	parent, err := r.kind.parent(ctx, name)
	if err != nil {
		return nil, err
	}
	if options != nil && r.sub.Default != nil {
		r.sub.Default(options) // the API machinery does not apply defaults to an empty query
	}
	if err := r.kind.validate(ctx, r.sub, options, name); err != nil {
		return nil, err
	}
	answer, err := r.sub.Look(ctx, &define.View{
		Resource:  r.version.GroupVersion.WithResource(r.kind.Definition.Resource),
		Namespace: objects.Meta(parent).GetNamespace(),
		Name:      name,
		Parent:    parent,
		Options:   options,
		User:      caller(ctx),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	if objects.IsNil(answer) {
		return nil, apierrors.NewInternalError(fmt.Errorf("view %s of %s returned no object", r.sub.Name, r.kind.Definition.GroupResource()))
	}
	return answer, nil
}

// viewREST is a view with options.
type viewREST struct{ view }

var (
	_ rest.GetterWithOptions = (*viewREST)(nil)
	_ rest.StorageMetadata   = (*viewREST)(nil)
	_ rest.TableConvertor    = (*viewREST)(nil)
)

func (r *viewREST) NewGetOptions() (runtime.Object, bool, string) { return r.sub.New(), false, "" }

func (r *viewREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	return r.look(ctx, name, options)
}

// plainViewREST is a view without options.
type plainViewREST struct{ view }

var (
	_ rest.Getter          = (*plainViewREST)(nil)
	_ rest.StorageMetadata = (*plainViewREST)(nil)
	_ rest.TableConvertor  = (*plainViewREST)(nil)
)

func (r *plainViewREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return r.look(ctx, name, nil)
}
