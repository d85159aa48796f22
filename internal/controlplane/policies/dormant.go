package policies

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
)

// dormancy determines whether a write is of a resource that the rules of a policy or a webhook name. Upstream's plugins prepare
// every write, and compare it with every rule, before they find none. Moreover, the first write would find the plugins not ready,
// and poll them every 100 ms.
type dormancy struct {
	objects cache.SharedIndexInformer
	stopped <-chan struct{}

	changes atomic.Uint64 // of objects
	reading sync.Mutex    // is held while the rules are read
	rules   atomic.Pointer[ruleNames]
}

// ruleNames are the groups and resources that rules name, after a number of changes. Both may be wildcards.
type ruleNames struct {
	changes   uint64
	resources map[schema.GroupResource]bool
}

var everything = schema.GroupResource{Group: "*", Resource: "*"}

// newDormancy follows the policies or webhook configurations of an informer that has not been started.
func newDormancy(objects cache.SharedIndexInformer, stopped <-chan struct{}) (*dormancy, error) {
	d := &dormancy{objects: objects, stopped: stopped}
	_, err := objects.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { d.changes.Add(1) },
		UpdateFunc: func(any, any) { d.changes.Add(1) },
		DeleteFunc: func(any) { d.changes.Add(1) },
	})
	return d, err
}

// patience is how long a write waits for the initial list of objects, as in upstream's plugins.
const patience = 10 * time.Second

// ends reports whether there may be rules for a write. It waits for the initial list of objects.
func (d *dormancy) ends(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (bool, error) {
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
	rules := d.current()
	if len(rules.resources) == 0 {
		return false, nil
	}
	if rules.has(a.GetResource().GroupResource()) {
		return true, nil
	}
	// A rule applies to equivalent resources, too, unless its match policy is Exact.
	return slices.ContainsFunc(o.GetEquivalentResourceMapper().EquivalentResourcesFor(a.GetResource(), a.GetSubresource()),
		func(other schema.GroupVersionResource) bool { return rules.has(other.GroupResource()) }), nil
}

// current returns the rules of the objects as they are now.
func (d *dormancy) current() *ruleNames {
	if known := d.rules.Load(); known != nil && known.changes == d.changes.Load() {
		return known
	}
	d.reading.Lock()
	defer d.reading.Unlock()
	// A change during the list has the next write read them again.
	rules := &ruleNames{d.changes.Load(), map[schema.GroupResource]bool{}}
	if known := d.rules.Load(); known != nil && known.changes == rules.changes {
		return known
	}
	for _, object := range d.objects.GetStore().List() {
		rules.add(object)
	}
	d.rules.Store(rules)
	return rules
}

// add adds the resources of an object's rules.
func (r *ruleNames) add(object any) {
	switch o := object.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			for _, rule := range o.Webhooks[i].Rules {
				r.addRule(&rule.Rule)
			}
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			for _, rule := range o.Webhooks[i].Rules {
				r.addRule(&rule.Rule)
			}
		}
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		r.addMatch(o.Spec.MatchConstraints)
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		r.addMatch(o.Spec.MatchConstraints)
	default:
		r.resources[everything] = true
	}
}

// addMatch adds the resources of a policy, which applies to all of them without rules.
func (r *ruleNames) addMatch(match *admissionregistrationv1.MatchResources) {
	if match == nil || len(match.ResourceRules) == 0 {
		r.resources[everything] = true
		return
	}
	for i := range match.ResourceRules {
		r.addRule(&match.ResourceRules[i].Rule)
	}
}

func (r *ruleNames) addRule(rule *admissionregistrationv1.Rule) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			resource, _, _ = strings.Cut(resource, "/")
			r.resources[schema.GroupResource{Group: group, Resource: resource}] = true
		}
	}
}

// has reports whether a rule names a resource.
func (r *ruleNames) has(resource schema.GroupResource) bool {
	return r.resources[resource] ||
		r.resources[schema.GroupResource{Group: resource.Group, Resource: "*"}] ||
		r.resources[schema.GroupResource{Group: "*", Resource: resource.Resource}] ||
		r.resources[everything]
}

// dormant returns a plugin that is called only for resources that rules name.
func (d *dormancy) dormant(made admission.Interface) admission.Interface {
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
	dormancy *dormancy
}

// Admit implements admission.MutationInterface.
func (p dormantMutation) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if ends, err := p.dormancy.ends(ctx, a, o); err != nil || !ends {
		return err
	}
	return p.MutationInterface.Admit(ctx, a, o)
}

type dormantValidation struct {
	admission.ValidationInterface
	dormancy *dormancy
}

// Validate implements admission.ValidationInterface.
func (p dormantValidation) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if ends, err := p.dormancy.ends(ctx, a, o); err != nil || !ends {
		return err
	}
	return p.ValidationInterface.Validate(ctx, a, o)
}
