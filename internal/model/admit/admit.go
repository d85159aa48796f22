// Package admit turns the hooks that users declare with their kinds into admission plugins.
package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/model/define"
)

// Hooks is the admission plugin of all declared hooks.
type Hooks struct {
	kinds map[schema.GroupResource]kindHooks
}

// kindHooks contains the hooks of a kind.
type kindHooks struct {
	kind                 schema.GroupKind
	mutating, validating []define.Admission
	connecting           []define.Admission
	creates, updates     []define.BesideAdmission
}

var (
	_ admission.MutationInterface   = (*Hooks)(nil)
	_ admission.ValidationInterface = (*Hooks)(nil)
)

// NewHooks creates the hooks of all kinds for one server. env is the façade's handle on the server.
func NewHooks(server *define.Server, env any) (*Hooks, error) {
	h := &Hooks{kinds: map[schema.GroupResource]kindHooks{}}
	var errs []error
	for _, k := range server.Kinds() {
		if k.AliasOf != nil {
			continue
		}
		all := kindHooks{kind: k.GroupKind()}
		for i, construct := range k.Admissions {
			hook, err := construct(env)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("admission hook %d of kind %s: %w", i+1, k.GroupKind(), err))
			case hook.Mutating:
				all.mutating = append(all.mutating, hook)
			default:
				all.validating = append(all.validating, hook)
			}
		}
		for i, construct := range k.ConnectAdmissions {
			hook, err := construct(env)
			if err != nil {
				errs = append(errs, fmt.Errorf("admission of connections, hook %d of kind %s: %w", i+1, k.GroupKind(), err))
				continue
			}
			all.connecting = append(all.connecting, hook)
		}
		for _, beside := range []struct {
			of    string
			makes []func(env any) (define.BesideAdmission, error)
			to    *[]define.BesideAdmission
		}{{"creates", k.CreateAdmissions, &all.creates}, {"updates", k.UpdateAdmissions, &all.updates}} {
			for i, construct := range beside.makes {
				hook, err := construct(env)
				if err != nil {
					errs = append(errs, fmt.Errorf("admission of %s, hook %d of kind %s: %w", beside.of, i+1, k.GroupKind(), err))
					continue
				}
				*beside.to = append(*beside.to, hook)
			}
		}
		h.kinds[k.GroupResource()] = all
		for _, also := range k.Aliases {
			h.kinds[also.GroupResource()] = kindHooks{also.GroupKind(), all.mutating, all.validating, all.connecting, all.creates, all.updates}
		}
	}
	return h, errors.Join(errs...)
}

// Beside returns the hooks that decide about creates and updates given the other objects of the kind.
func (h *Hooks) Beside(resource schema.GroupResource) (creates, updates []define.BesideAdmission) {
	k := h.kinds[resource]
	return k.creates, k.updates
}

// Handles reports whether the plugin handles an operation: all writes, but not connections, for which there is
// Connect.
func (h *Hooks) Handles(operation admission.Operation) bool {
	return operation != admission.Connect
}

// Admit runs the mutating hooks of creates and updates. It skips deletes and writes of /scale, in which there is
// nothing that they could change.
func (h *Hooks) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	k := h.kinds[a.GetResource().GroupResource()]
	if a.GetKind().GroupKind() != k.kind || a.GetOperation() == admission.Delete {
		return nil
	}
	return review(ctx, a, k.mutating)
}

// Validate runs the validating hooks.
func (h *Hooks) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	k := h.kinds[a.GetResource().GroupResource()]
	if s, ok := ctx.Value(scaledKey{}).(scaledAttributes); ok {
		s.Attributes = a
		return review(ctx, s, k.validating)
	}
	if a.GetKind().GroupKind() != k.kind {
		return nil
	}
	return review(ctx, a, k.validating)
}

// Connect runs the hooks that decide about connections.
func (h *Hooks) Connect(ctx context.Context, a admission.Attributes) error {
	return review(ctx, a, h.kinds[a.GetResource().GroupResource()].connecting)
}

func review(ctx context.Context, a admission.Attributes, hooks []define.Admission) error {
	for _, hook := range hooks {
		if len(hook.On) > 0 && !slices.Contains(hook.On, a.GetOperation()) {
			continue
		}
		if err := hook.Review(ctx, a); err != nil {
			return Refusal(a, err)
		}
	}
	return nil
}

// Refusal turns a hook's error into a 403, unless it is or wraps an API status.
func Refusal(a admission.Attributes, err error) error {
	if status, ok := apierr.Status(err); ok {
		return status
	}
	return admission.NewForbidden(a, err)
}

// WithScaled returns a context in which the hooks of a kind receive the scaled object. The attributes of the request
// contain its scale, which is of another kind. Without the hooks, /scale would bypass them.
func WithScaled(ctx context.Context, obj, old runtime.Object) context.Context {
	return context.WithValue(ctx, scaledKey{}, scaledAttributes{obj: obj, old: old})
}

type scaledKey struct{}

type scaledAttributes struct {
	admission.Attributes
	obj, old runtime.Object
}

func (s scaledAttributes) GetObject() runtime.Object    { return s.obj }
func (s scaledAttributes) GetOldObject() runtime.Object { return s.old }
