package serve

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/program/definition"
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
	contents := newContents(o, model.stores, model.tools)
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
	contents.logUnserved(ctx)
	return &machinery{model, contents, checked, catalog, api}, nil
}
