package policies

import (
	"context"
	"os"
	"testing"
	"testing/synctest"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/testing/testlog"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }

// counting is a plugin of either type that counts its calls.
type counting struct {
	*admission.Handler
	asked int
}

func (c *counting) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.asked++
	return nil
}

type countingValidation struct {
	*admission.Handler
	asked int
}

func (c *countingValidation) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.asked++
	return nil
}

// source is a list of objects that blocks until open is closed.
func source(
	open <-chan struct{},
	changes *watch.FakeWatcher,
	objects ...admissionregistrationv1.ValidatingAdmissionPolicy,
) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			select {
			case <-open:
			case <-ctx.Done():
			}
			return &admissionregistrationv1.ValidatingAdmissionPolicyList{
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items:    objects,
			}, ctx.Err()
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return changes, nil },
	}, noWatchList{})
}

// dormancyOf returns the dormancy of plugins for policies, whose informer runs until ctx ends.
func dormancyOf(ctx context.Context, t *testing.T, policies cache.ListerWatcher) *dormancy {
	t.Helper()
	objects := cache.NewSharedIndexInformer(policies, &admissionregistrationv1.ValidatingAdmissionPolicy{}, 0, nil)
	d, err := newDormancy(objects, ctx.Done())
	if err != nil {
		t.Fatal(err)
	}
	go objects.RunWithContext(ctx)
	return d
}

type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// policyFor is a policy with a rule for a resource of a group.
func policyFor(group, resource string) admissionregistrationv1.ValidatingAdmissionPolicy {
	return admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: "1"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: &admissionregistrationv1.MatchResources{
			ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: ruleFor(group, resource)}},
		}},
	}
}

func ruleFor(group, resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{Rule: admissionregistrationv1.Rule{
		APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource},
	}}
}

// interfaces have the equivalent resources of the tests.
type interfaces struct {
	admission.ObjectInterfaces
	equivalent runtime.EquivalentResourceMapper
}

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return i.equivalent
}

func without() interfaces { return interfaces{equivalent: runtime.NewEquivalentResourceRegistry()} }

func write() admission.Attributes {
	return admission.NewAttributesRecord(
		nil,
		nil,
		schema.GroupVersionKind{Kind: "Kind"},
		"ns",
		"name",
		schema.GroupVersionResource{Resource: "kinds"},
		"",
		admission.Create,
		nil,
		false,
		nil,
	)
}

func TestDormant_callsOnlyForResourcesThatRulesName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		open, changes := make(chan struct{}), watch.NewFake()
		mutates, validates := &counting{
			Handler: admission.NewHandler(admission.Create),
		}, &countingValidation{
			Handler: admission.NewHandler(admission.Create),
		}
		d := dormancyOf(ctx, t, source(open, changes))
		close(open)
		ask := func() {
			t.Helper()
			synctest.Wait()
			if err := d.dormant(mutates).(admission.MutationInterface).Admit(ctx, write(), without()); err != nil {
				t.Error(err)
			}
			if err := d.dormant(validates).(admission.ValidationInterface).Validate(ctx, write(), without()); err != nil {
				t.Error(err)
			}
		}
		asked := func(want int) {
			t.Helper()
			if mutates.asked != want || validates.asked != want {
				t.Errorf("asked %d and %d times, not %d", mutates.asked, validates.asked, want)
			}
		}
		ask()
		asked(0)
		other := policyFor("", "others")
		changes.Add(&other)
		ask()
		asked(0)
		policy := policyFor("", "kinds")
		changes.Modify(&policy)
		ask()
		asked(1)
		changes.Modify(&other)
		ask()
		asked(1)
		changes.Delete(&other)
		ask()
		asked(1)
		if d.dormant(mutates).Handles(admission.Update) || !d.dormant(mutates).Handles(admission.Create) {
			t.Error("the plugin handles other operations than before")
		}
		if _, both := d.dormant(mutates).(admission.ValidationInterface); both {
			t.Error("a plugin that mutates has become one that validates, too")
		}
	})
}

func TestDormant_waitsForInitialList(t *testing.T) {
	for name, c := range map[string]struct {
		opens     bool
		asked     int
		forbidden bool
	}{
		"read at last": {opens: true, asked: 1},
		"never read":   {forbidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				open := make(chan struct{})
				d := dormancyOf(ctx, t, source(open, watch.NewFake(), policyFor("", "kinds")))
				plugin := &countingValidation{Handler: admission.NewHandler(admission.Create)}
				answer := make(chan error, 1)
				go func() {
					answer <- d.dormant(plugin).(admission.ValidationInterface).Validate(ctx, write(), without())
				}()
				synctest.Wait()
				select {
				case err := <-answer:
					t.Fatalf("answered before the policies were read: %v", err)
				default:
				}
				if c.opens {
					close(open)
				}
				if err := <-answer; apierrors.IsForbidden(err) != c.forbidden || plugin.asked != c.asked {
					t.Errorf("answered %v, asked %d times", err, plugin.asked)
				}
			})
		})
	}
}

func TestRuleNames_has(t *testing.T) {
	hook := func(rules ...admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.ValidatingWebhook {
		return []admissionregistrationv1.ValidatingWebhook{{Name: "a.example.com"}, {Name: "b.example.com", Rules: rules}}
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Rules: []admissionregistrationv1.RuleWithOperations{ruleFor("apps", "deployments/scale")}},
	}}
	anything := admissionregistrationv1.MutatingAdmissionPolicy{}
	anything.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{}
	policy, wildcard := policyFor("apps", "deployments"), policyFor("*", "*/*")
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for name, c := range map[string]struct {
		object any
		is     schema.GroupResource
		want   bool
	}{
		"the resource of a policy":        {&policy, deployments, true},
		"another resource":                {&policy, schema.GroupResource{Group: "apps", Resource: "daemonsets"}, false},
		"the resource of another group":   {&policy, schema.GroupResource{Group: "extensions", Resource: "deployments"}, false},
		"all of all groups":               {&wildcard, deployments, true},
		"the parent of a subresource":     {mutating, deployments, true},
		"a second webhook":                {&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: hook(ruleFor("*", "deployments"))}, deployments, true},
		"all of a group":                  {&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: hook(ruleFor("apps", "*"))}, deployments, true},
		"all of another group":            {&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: hook(ruleFor("batch", "*"))}, deployments, false},
		"webhooks without rules":          {&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: hook()}, deployments, false},
		"a policy without rules":          {&anything, deployments, true},
		"a policy without constraints":    {&admissionregistrationv1.ValidatingAdmissionPolicy{}, deployments, true},
		"an object that is no such thing": {&metav1.Status{}, deployments, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := ruleNames{resources: map[schema.GroupResource]bool{}}
			if r.add(c.object); r.has(c.is) != c.want {
				t.Errorf("the rules %v name %s: %v", r.resources, c.is, !c.want)
			}
		})
	}
}

// A rule for a resource applies to the same objects under another name.
func TestDormancy_equivalentResource_ends(t *testing.T) {
	for name, named := range map[string]schema.GroupResource{
		"of another group":  {Group: "old.example.com", Resource: "kinds"},
		"of the same group": {Resource: "formerkinds"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				open := make(chan struct{})
				close(open)
				d := dormancyOf(ctx, t, source(open, watch.NewFake(), policyFor(named.Group, named.Resource)))
				same := runtime.NewEquivalentResourceRegistryWithIdentity(func(schema.GroupResource) string { return "kinds" })
				for _, resource := range []schema.GroupResource{{Resource: "kinds"}, named} {
					same.RegisterKindFor(resource.WithVersion(""), "", schema.GroupVersionKind{Group: resource.Group, Kind: "Kind"})
				}
				for equivalent, want := range map[runtime.EquivalentResourceMapper]bool{same: true, runtime.NewEquivalentResourceRegistry(): false} {
					if ends, err := d.ends(ctx, write(), interfaces{equivalent: equivalent}); ends != want || err != nil {
						t.Errorf("ends: %v, %v", ends, err)
					}
				}
			})
		})
	}
}
