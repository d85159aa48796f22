package serve

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/storage/virtual"
)

// catalog has the kinds of a definition, and the parts of the definition that run: hooks and operations.
type catalog struct {
	env        any
	hooks      *admit.Hooks
	operations define.Operations // nil if no kind has operations
	kinds      []*registry.Kind
}

func newCatalog(
	ctx context.Context, o *opened, m model, storage modeStorage, newEnv definition.EnvFunc, closing *closers,
) (*catalog, error) {
	env := newEnv(o.plan.Definition, o.loopback.Config(), m.informers, o.rootCA)
	hooks, err := admit.NewHooks(o.plan.Definition, env)
	if err != nil {
		return nil, err
	}
	m.stores.Hooks = hooks
	operations, err := newOperations(o.plan, m.informers, env)
	if err != nil {
		return nil, err
	}
	kinds, err := kindBuilder{
		plan: o.plan, model: m, mode: storage, collectsGarbage: o.mode.collectsGarbage(),
		env: env, hooks: hooks, operations: operations,
	}.build(ctx, closing)
	if err != nil {
		return nil, err
	}
	return &catalog{env, hooks, operations, kinds}, nil
}

// served returns the verbs of a kind's main endpoint, and its subresources.
func (c *catalog) served(resource schema.GroupResource) (verbs, subresources []string) {
	if k := kindOf(c.kinds, resource); k != nil {
		return upstream.Served(k)
	}
	return nil, nil
}

// recall implements define.Recall.
func (c *catalog) recall(ctx context.Context, recorded define.Recorded) (context.Context, *define.Call, error) {
	if k := kindOf(c.kinds, recorded.Resource.GroupResource()); k != nil {
		return k.Call(ctx, recorded)
	}
	return nil, nil, fmt.Errorf("%w: no resource %s", define.ErrUnknownAction, recorded.Resource.GroupResource())
}

// kindOf returns the kind of a resource; nil if there is none.
func kindOf(kinds []*registry.Kind, resource schema.GroupResource) *registry.Kind {
	for _, k := range kinds {
		if k.Definition.GroupResource() == resource {
			return k
		}
	}
	return nil
}

// kindBuilder makes the kinds of a definition.
type kindBuilder struct {
	plan            *plan.Plan
	model           model
	mode            modeStorage
	collectsGarbage bool
	env             any
	hooks           *admit.Hooks
	operations      define.Operations
	gates           map[string]bool
}

// build returns the kinds in the order of the definition, each followed by its aliases.
func (b kindBuilder) build(ctx context.Context, closing *closers) ([]*registry.Kind, error) {
	var all []*registry.Kind
	b.gates = registry.FeatureGates()
	for _, k := range b.plan.Definition.Kinds() {
		if k.AliasOf != nil {
			continue
		}
		storage, err := b.storageOf(ctx, k, closing)
		if err != nil {
			return nil, err
		}
		kind, err := registry.NewKind(k, b.options(k, storage))
		if err != nil {
			return nil, err
		}
		all = append(all, kind)
		closing.destroy(kind.Storage())
		for _, also := range k.Aliases {
			all = append(all, kind.Share(also, b.options(also, storage)))
		}
	}
	return all, nil
}

func (b kindBuilder) options(k *define.Kind, storage generic.RESTOptionsGetter) registry.Options {
	scheme := b.model.schemes.Of(k.Group).Scheme
	return registry.Options{
		Typer:               scheme,
		Convertor:           scheme,
		Validator:           scheme,
		RESTOptions:         b.mode.guard(storage),
		Opened:              b.model.stores.Opened,
		UnconditionalUpdate: b.plan.Options.UnrestrictedUpdate,
		Env:                 b.env,
		Hooks:               b.hooks,
		Operations:          b.operations,
		GarbageCollected:    b.collectsGarbage,
		Gates:               b.gates,
	}
}

// storageOf returns the storage of a kind: the stores, or the mirror of a virtual kind's source.
func (b kindBuilder) storageOf(ctx context.Context, k *define.Kind, closing *closers) (generic.RESTOptionsGetter, error) {
	if k.Source == nil {
		return b.model.stores, nil
	}
	mirror, err := virtual.Open(ctx, k, coreOptions(&b.plan.Options))
	if err != nil {
		return nil, err
	}
	closing.add(mirror.Close)
	return mirror.Over(b.model.stores), nil
}
