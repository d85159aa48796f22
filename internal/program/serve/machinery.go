package serve

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/registry"
)

// machinery has everything of a server that answers requests, made from the opened parts. It answers none by itself.
type machinery struct {
	model    model
	contents *contents
	// checked is set if the stored objects have been found readable. Otherwise a storage has not been reached yet.
	checked bool
	catalog *catalog
	api     *api
}

// newMachinery makes the machinery. After an error, the caller closes the parts that are open.
func newMachinery(ctx context.Context, o *opened, s signals, newEnv definition.EnvFunc, closing *closers) (*machinery, error) {
	model, err := newModel(ctx, o)
	if err != nil {
		return nil, err
	}
	contents := newContents(o, model)
	checked, err := contents.check(ctx)
	if err != nil {
		return nil, err
	}
	storage, err := o.mode.store(model, closing)
	if err != nil {
		return nil, err
	}
	if o.plan.Options.UnrestrictedUpdate {
		klog.FromContext(ctx).Error(nil, "Options.UnrestrictedUpdate: updates without a resource version overwrite what others have written")
	}
	catalog, err := newCatalog(ctx, o, model, storage, newEnv, closing)
	if err != nil {
		return nil, err
	}
	api, err := apiBuilder{o, s, model, contents, catalog}.build(ctx, storage, closing)
	if err != nil {
		return nil, err
	}
	return &machinery{model, contents, checked, catalog, api}, nil
}

// model has the schemes of a definition's groups, and the stores of all resources. The stores are opened by their
// kinds.
type model struct {
	schemes   *convert.Machinery
	informers *informer.Set
	stores    *registry.Stores
	tools     *maintenance.Local
}

func newModel(ctx context.Context, o *opened) (model, error) {
	schemes, err := convert.New(o.plan.Definition, o.mode.types()...)
	if err != nil {
		return model{}, err
	}
	schemes.Items().Bound(ListItems())
	o.storages.logHidden(ctx, o.encryption)
	informers := informer.NewSet(o.loopback.Config(), schemes.Codecs)
	stores := newStores(o.plan, o.storages.OfAny, schemes, o.encryption)
	tools, err := servedTools(o, schemes, stores)
	if err != nil {
		return model{}, err
	}
	return model{schemes, informers, stores, tools}, nil
}
