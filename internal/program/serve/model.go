package serve

import (
	"context"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/registry"
)

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
