package quota

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// measureNames adds up what objects of measured kinds use.
func (c *Controller) measureNames(ctx context.Context, t *tally) {
	for _, e := range c.measures {
		names := e.MatchingResources(quota.ResourceNames(t.q.Spec.Hard))
		if len(names) == 0 {
			continue
		}
		if err := c.measure(ctx, t, e, names); err != nil {
			t.keep(fmt.Errorf("measure %s: %w", e.GroupResource(), err), names...)
		}
	}
}

// measure adds what objects of a kind use of a quota, including admitted objects that may still be stored: see count. After
// an error it has added nothing.
func (c *Controller) measure(ctx context.Context, t *tally, e quota.Evaluator, names []corev1.ResourceName) error {
	kind, used := e.GroupResource(), corev1.ResourceList{}
	for _, name := range names {
		used[name] = resource.Quantity{Format: resource.DecimalSI}
	}
	set, err := c.kinds.Ask(ctx)
	if err != nil {
		return err
	}
	limited := t.q.DeepCopy()
	limited.Status.Hard = limited.Spec.Hard // by which an evaluator decides whether the quota concerns it
	add := func(obj runtime.Object) error {
		if concerned, err := e.Matches(limited, obj); err != nil || !concerned {
			return err
		}
		one, err := e.Usage(obj)
		if err != nil {
			return err
		}
		used = quota.Add(used, quota.Mask(one, names))
		return nil
	}
	if _, served := set.Get(kind); served {
		pending, stored := c.creates.pending(ctx, kind, t.q.Namespace), map[types.UID]bool{}
		if err := c.eachStored(ctx, kind, t.q.Namespace, func(obj runtime.Object) error {
			if m, err := meta.Accessor(obj); err == nil && len(pending) > 0 {
				stored[m.GetUID()] = true
			}
			return add(obj)
		}); err != nil {
			return err
		}
		for _, one := range pending {
			if one.object == nil || stored[one.uid] {
				continue
			}
			t.unstored = true
			if err := add(one.object); err != nil {
				return err
			}
		}
	}
	maps.Copy(t.used, used)
	return nil
}

// clientsOf returns a client for version v1 of each group that has a measured kind.
func clientsOf(config *rest.Config, all measures) (map[string]rest.Interface, error) {
	groups := map[string]rest.Interface{}
	for _, e := range all {
		v := schema.GroupVersion{Group: e.GroupResource().Group, Version: "v1"}
		if groups[v.Group] != nil {
			continue
		}
		own := rest.CopyConfig(config)
		own.GroupVersion, own.APIPath, own.NegotiatedSerializer = &v, "/apis", scheme.Codecs.WithoutConversion()
		if v.Group == corev1.GroupName {
			own.APIPath = "/api"
		}
		client, err := rest.RESTClientFor(own)
		if err != nil {
			return nil, err
		}
		groups[v.Group] = client
	}
	return groups, nil
}

// eachStored calls a function for each stored object of a kind in a namespace. All objects are of one revision.
func (c *Controller) eachStored(ctx context.Context, kind schema.GroupResource, namespace string, call func(runtime.Object) error) error {
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := c.groups[kind.Group].Get().Namespace(namespace).Resource(kind.Resource).
			VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Get()
		if err != nil {
			return err
		}
		if err := meta.EachListItem(list, call); err != nil {
			return err
		}
		m, err := meta.ListAccessor(list)
		if err != nil {
			return err
		}
		if options.Continue = m.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// meter is an observer of a measured kind. It also observes that objects use more or less than before, for example pods
// that have ended. Instead of objects it keeps digests of what they use.
type meter struct {
	*observer
	evaluator quota.Evaluator
	seed      maphash.Seed
	uses      map[types.UID]uint64
}

var _ cache.ReflectorStore = (*meter)(nil)

func (c *Controller) observeUse(ctx context.Context, e quota.Evaluator, resource schema.GroupVersionResource) *observer {
	ctx, cancel := context.WithCancel(ctx)
	m := &meter{&observer{c, resource, cancel}, e, maphash.MakeSeed(), map[types.UID]uint64{}}
	objects := cache.NewListWatchFromClient(c.groups[resource.Group], resource.Resource, metav1.NamespaceAll, fields.Everything())
	reflector := cache.NewReflectorWithOptions(objects, nil, m, cache.ReflectorOptions{
		Name: "quota controller", TypeDescription: resource.String(),
	})
	c.running.Go(func() { reflector.RunWithContext(ctx) })
	return m.observer
}

// Add implements cache.ReflectorStore.
func (m *meter) Add(obj any) error {
	if _, _, err := m.see(obj); err != nil {
		return err
	}
	return m.observer.Add(obj)
}

// Update implements cache.ReflectorStore.
func (m *meter) Update(obj any) error {
	namespace, changed, err := m.see(obj)
	if err != nil {
		return err
	}
	if changed {
		m.controller.changed(m.resource.GroupResource(), namespace)
	}
	return m.observer.Add(obj)
}

// Delete implements cache.ReflectorStore.
func (m *meter) Delete(obj any) error {
	if about, err := meta.Accessor(obj); err == nil {
		delete(m.uses, about.GetUID())
	}
	return m.observer.Delete(obj)
}

// Replace implements cache.ReflectorStore.
func (m *meter) Replace(all []any, revision string) error {
	clear(m.uses)
	for _, obj := range all {
		if _, _, err := m.see(obj); err != nil {
			return err
		}
	}
	return m.observer.Replace(all, revision)
}

// see keeps a digest of what an object uses, and reports whether it differs from the last one.
func (m *meter) see(obj any) (namespace string, changed bool, err error) {
	about, err := meta.Accessor(obj)
	if err != nil {
		return "", false, err
	}
	digest, err := m.digest(obj.(runtime.Object))
	if err != nil {
		return "", false, err
	}
	last, known := m.uses[about.GetUID()]
	m.uses[about.GetUID()] = digest
	return about.GetNamespace(), known && last != digest, nil
}

// scopes are those that an object can enter or leave.
var scopes = []corev1.ResourceQuotaScope{
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeVolumeAttributesClass,
}

func (m *meter) digest(obj runtime.Object) (uint64, error) {
	used, err := m.evaluator.Usage(obj)
	if err != nil {
		return 0, err
	}
	var asked []corev1.ScopedResourceSelectorRequirement
	for _, scope := range scopes {
		asked = append(asked, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	in, err := m.evaluator.MatchingScopes(obj, asked)
	if err != nil {
		return 0, err
	}
	text, err := json.Marshal([]any{used, in})
	if err != nil {
		return 0, err
	}
	return maphash.Bytes(m.seed, text), nil
}
