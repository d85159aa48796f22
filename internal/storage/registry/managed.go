package registry

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/wire/managed"
)

// fieldManagers record who has set which fields of the parent in a version: through the
// main endpoint, and through /status.
type fieldManagers struct {
	main, status *managedfields.FieldManager
}

// ManageFields has the changes that custom subresources make recorded in the managed
// fields of their parents, as those of other endpoints are: else an applier would undo
// them without a conflict. models are the types of the kind's group. It must be called
// before the first request.
func (k *Kind) ManageFields(models managedfields.TypeConverter, scheme *runtime.Scheme) error {
	requested := false
	for _, s := range k.Definition.CustomSubresources {
		requested = requested || s.Handle != nil
	}
	if !requested || k.own != nil {
		return nil
	}
	k.managers = map[*define.Version]fieldManagers{}
	for _, v := range k.Definition.Versions {
		if v.Unserved {
			continue
		}
		manager := func(subresource string, strategy rest.ResetFieldsStrategy) (*managedfields.FieldManager, error) {
			hub := schema.GroupVersion{Group: v.GroupVersion.Group, Version: runtime.APIVersionInternal}
			return managedfields.NewDefaultFieldManager(models, runtime.UnsafeObjectConvertor(scheme), scheme, scheme,
				v.GroupVersion.WithKind(k.Definition.Name), hub, subresource, fieldpath.NewExcludeFilterSetMap(strategy.GetResetFields()))
		}
		managers := fieldManagers{}
		var err error
		if managers.main, err = manager("", k.store.ResetFieldsStrategy); err != nil {
			return fmt.Errorf("managed fields of %s: %w", v.GroupVersion.WithKind(k.Definition.Name), err)
		}
		if k.status != nil {
			if managers.status, err = manager("status", k.status.ResetFieldsStrategy); err != nil {
				return fmt.Errorf("managed fields of %s: %w", v.GroupVersion.WithKind(k.Definition.Name), err)
			}
		}
		k.managers[v] = managers
	}
	return nil
}

type waitKey struct{}

// WithWait returns a context that tells long actions how long the client waits for their end.
func WithWait(ctx context.Context, wait string) context.Context {
	return context.WithValue(ctx, waitKey{}, wait)
}

func waitOf(ctx context.Context) string {
	wait, _ := ctx.Value(waitKey{}).(string)
	return wait
}

type userAgentKey struct{}

// WithUserAgent returns a context that tells custom subresources which program sends the
// request. It names the field manager of a request that names none.
func WithUserAgent(ctx context.Context, agent string) context.Context {
	return context.WithValue(ctx, userAgentKey{}, agent)
}

// fieldManagerOf is the name under which a request's changes are recorded, as at the endpoints that are upstream's.
func fieldManagerOf(ctx context.Context, given string) string {
	agent, _ := ctx.Value(userAgentKey{}).(string)
	return managed.NameOf(given, agent)
}
