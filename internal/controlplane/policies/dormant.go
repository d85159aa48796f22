package policies

import (
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// dormancy determines whether a plugin has any policies or webhook configurations. Without them, upstream's plugins
// still prepare every write before they find none. Moreover, the first write would find the plugins not ready, and
// poll them every 100 ms.
type dormancy struct {
	objects cache.SharedIndexInformer
	stopped <-chan struct{}
}

// patience is how long a write waits for the initial list of objects, as in upstream's plugins.
const patience = 10 * time.Second

// ends reports whether there are objects. It waits for the initial list.
func (d dormancy) ends(ctx context.Context, a admission.Attributes) (bool, error) {
	read := d.objects.HasSyncedChecker().Done()
	select {
	case <-read:
	default:
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-read:
		case <-ctx.Done():
			return false, admission.NewForbidden(a, context.Cause(ctx))
		case <-d.stopped:
			return false, admission.NewForbidden(a, errors.New("the server is stopping"))
		case <-timer.C:
			return false, admission.NewForbidden(a, errors.New("not yet ready to handle request"))
		}
	}
	return len(d.objects.GetStore().ListKeys()) > 0, nil
}

// dormant returns a plugin that is called only while there are objects.
func (d dormancy) dormant(made admission.Interface) admission.Interface {
	switch p := made.(type) {
	case admission.MutationInterface:
		return dormantMutation{p, d}
	case admission.ValidationInterface:
		return dormantValidation{p, d}
	}
	return made
}

type dormantMutation struct {
	admission.MutationInterface
	dormancy dormancy
}

// Admit implements admission.MutationInterface.
func (p dormantMutation) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if ends, err := p.dormancy.ends(ctx, a); err != nil || !ends {
		return err
	}
	return p.MutationInterface.Admit(ctx, a, o)
}

type dormantValidation struct {
	admission.ValidationInterface
	dormancy dormancy
}

// Validate implements admission.ValidationInterface.
func (p dormantValidation) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if ends, err := p.dormancy.ends(ctx, a); err != nil || !ends {
		return err
	}
	return p.ValidationInterface.Validate(ctx, a, o)
}
