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

// fieldManagers record the owners of the parent's fields in a version: for changes through the main endpoint, and
// through /status.
type fieldManagers struct {
	main, status *managedfields.FieldManager
}

// ManageFields enables the recording of changes by custom subresources in the managed fields of their parents, as other
// endpoints do. Without that, an applier would revert them without a conflict. models are the types of the kind's
// group. ManageFields must be called before the first request.
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

// WithWait returns a context with the time that the client waits for the end of a long action.
func WithWait(ctx context.Context, wait string) context.Context {
	return context.WithValue(ctx, waitKey{}, wait)
}

func waitOf(ctx context.Context) string {
	wait, _ := ctx.Value(waitKey{}).(string)
	return wait
}

type userAgentKey struct{}

// WithUserAgent returns a context with the user agent of the request, for custom subresources. It becomes the field
// manager of a request that names none.
func WithUserAgent(ctx context.Context, agent string) context.Context {
	return context.WithValue(ctx, userAgentKey{}, agent)
}

// fieldManagerOf returns the field manager under which a request's changes are recorded. The rule is that of the API
// machinery's own endpoints.
func fieldManagerOf(ctx context.Context, given string) string {
	agent, _ := ctx.Value(userAgentKey{}).(string)
	return managed.NameOf(given, agent)
}
