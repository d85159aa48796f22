// Package admit decides which writes may happen: it turns the hooks that users
// declare with their kinds into admission plugins.
package admit

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/define"
)

// Hooks is the admission plugin of all declared hooks.
type Hooks struct {
	byKind map[schema.GroupKind][]define.Admission
}

var (
	_ admission.MutationInterface   = (*Hooks)(nil)
	_ admission.ValidationInterface = (*Hooks)(nil)
)

// NewHooks makes the hooks of all kinds for one server, given the façade's handle
// on it.
func NewHooks(server *define.Server, host any) (*Hooks, error) {
	h := &Hooks{byKind: map[schema.GroupKind][]define.Admission{}}
	var errs []error
	for _, k := range server.Kinds() {
		for i, construct := range k.Admissions {
			hook, err := construct(host)
			if err != nil {
				errs = append(errs, fmt.Errorf("admission hook %d of kind %s: %w", i+1, k.GroupKind(), err))
				continue
			}
			h.byKind[k.GroupKind()] = append(h.byKind[k.GroupKind()], hook)
		}
	}
	return h, errors.Join(errs...)
}

// Handles is true for all writes; a connection is not one.
func (h *Hooks) Handles(operation admission.Operation) bool {
	return operation != admission.Connect
}

// Admit runs the mutating hooks.
func (h *Hooks) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return h.run(ctx, a, true)
}

// Validate runs the validating hooks.
func (h *Hooks) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return h.run(ctx, a, false)
}

func (h *Hooks) run(ctx context.Context, a admission.Attributes, mutating bool) error {
	for _, hook := range h.byKind[a.GetKind().GroupKind()] {
		if hook.Mutating != mutating {
			continue
		}
		if err := hook.Review(ctx, a); err != nil {
			return refusal(a, err)
		}
	}
	return nil
}

// refusal makes a hook's error a 403, unless the hook chose a status itself.
func refusal(a admission.Attributes, err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return admission.NewForbidden(a, err)
}
