package managed_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/wire/managed"
)

// overlaid counts the configurations that overlay has applied.
type overlaid struct {
	first, again, lists, taken, unchanged, refused int
}

// TestOverlay_matchesUpstream applies configurations of scalars and of maps of strings. Most of them are the first of
// their manager and take fields over from other owners, forced or not. It compares with the manager of apimachinery.
func TestOverlay_matchesUpstream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compares thousands of random objects")
	}
	var mu sync.Mutex
	var total overlaid
	t.Run("kinds", func(t *testing.T) {
		for name, sample := range kinds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var count overlaid
				plain := newPair(t, sample, nil)
				defaulted := newPairWith(t, sample, nil, someDefaults{})
				filtered := newPair(t, sample, map[fieldpath.APIVersion]fieldpath.Filter{
					fieldpath.APIVersion(plain.kind.GroupVersion().String()): fieldpath.NewExcludeSetFilter(fieldpath.NewSet(
						fieldpath.MakePathOrDie(
							"status",
						),
						fieldpath.MakePathOrDie("metadata", "labels"),
						fieldpath.MakePathOrDie("metadata", "annotations", "a"),
					)),
				})
				for seed := range int64(8) {
					for _, p := range []pair{plain, filtered, defaulted} {
						p.lay(t, sample, seed, &count)
					}
				}
				if count.first == 0 {
					t.Errorf("too little has been laid over objects: %+v", count)
				}
				mu.Lock()
				defer mu.Unlock()
				total = overlaid{
					total.first + count.first,
					total.again + count.again,
					total.lists + count.lists,
					total.taken + count.taken,
					total.unchanged + count.unchanged,
					total.refused + count.refused,
				}
			})
		}
	})
	if total.again == 0 || total.lists == 0 || total.taken == 0 || total.unchanged == 0 || total.refused == 0 {
		t.Errorf("too little has been laid over objects: %+v", total)
	}
}

// FuzzOverlay is TestOverlay_matchesUpstream with other seeds.
func FuzzOverlay(f *testing.F) {
	fuzzKinds(f, func(t *testing.T, p pair, sample runtime.Object, seed int64) { p.lay(t, sample, seed, &overlaid{}) })
}

type someDefaults struct{}

// Default implements runtime.ObjectDefaulter.
func (someDefaults) Default(obj runtime.Object) {
	if m, err := meta.Accessor(obj); err == nil {
		annotations := m.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		if annotations["c"] == "" {
			annotations["c"] = "default"
		}
		m.SetAnnotations(annotations)
	}
}

// lay creates an object, and lets several managers change it and apply configurations to it.
func (p pair) lay(t *testing.T, sample runtime.Object, seed int64, count *overlaid) {
	t.Helper()
	fill, dice := random(seed), rand.New(rand.NewPCG(uint64(seed), 3))
	created := sample.DeepCopyObject()
	fill.Fill(created)
	live := p.readback(t, p.Upstream().UpdateNoErrors(sample.DeepCopyObject(), created, "creator"), dice)
	last := map[string]*unstructured.Unstructured{}
	for step := range 14 {
		if dice.IntN(3) == 0 {
			live = p.Upstream().UpdateNoErrors(live, p.change(t, live, fill, dice), []string{"creator", "updater"}[dice.IntN(2)])
		}
		live = p.readback(t, live, dice)
		age(t, live)
		manager := []string{"a", "b", "c", "kubectl"}[dice.IntN(4)]
		applied := last[manager].DeepCopy()
		if applied == nil || dice.IntN(4) == 0 {
			applied = p.plainly(t, live, fill, dice)
			if dice.IntN(8) == 0 {
				manager = fmt.Sprintf("manager-%d", step)
			}
		} else {
			revalueDocument(applied.Object, dice)
			applied.SetGroupVersionKind(p.kind)
		}
		if dice.IntN(6) == 0 { // sets the annotation of kubectl's last configuration
			m, _ := meta.Accessor(live)
			m.SetAnnotations(
				map[string]string{
					"a": "x",
					"kubectl.kubernetes.io/last-applied-configuration": []string{"", `{"apiVersion":"v1"}`, "nonsense"}[dice.IntN(3)],
				},
			)
		}
		force := dice.IntN(3) > 0
		theirs, theirErr := p.Upstream().Apply(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force)
		before, configuration := live.DeepCopyObject(), applied.DeepCopy()
		ours, ourErr := p.Apply(before, configuration, manager, force)
		if lines(theirErr) != lines(ourErr) {
			t.Errorf(
				"seed %d, step %d, apply by %s of\n%v\nto\n%s\nupstream's error\n%v\nours\n%v",
				seed,
				step,
				manager,
				applied,
				withoutTimes(t, live),
				theirErr,
				ourErr,
			)
			return
		}
		lays := p.Overlays(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force)
		if theirErr != nil {
			if lays {
				t.Errorf("seed %d, step %d: %v is applied that upstream refuses: %v", seed, step, applied, theirErr)
			}
			if _, ok := errors.AsType[*apierrors.StatusError](theirErr); ok && !force {
				count.refused++
			}
			continue
		}
		if a, b := withoutTimes(t, theirs), withoutTimes(t, ours); a != b {
			t.Errorf(
				"seed %d, step %d, apply by %s of\n%v\nto\n%s\nupstream's\n%s\nours\n%s",
				seed,
				step,
				manager,
				applied,
				withoutTimes(t, live),
				a,
				b,
			)
			return
		}
		if !reflect.DeepEqual(before, live) || !reflect.DeepEqual(configuration, applied) {
			t.Errorf("seed %d, step %d: the live object or the configuration has changed", seed, step)
		}
		if lays {
			count.add(live, theirs, last[manager] == nil)
			if hasLists(applied.Object) {
				count.lists++
			}
		}
		live, last[manager] = theirs, applied
	}
}

// readback returns an object as it is decoded from the storage, in most cases.
func (p pair) readback(t *testing.T, obj runtime.Object, dice *rand.Rand) runtime.Object {
	t.Helper()
	if dice.IntN(4) == 0 {
		return obj
	}
	written, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	read, err := scheme.Scheme.New(p.kind)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(written, read); err != nil {
		t.Fatal(err)
	}
	return read
}

func (o *overlaid) add(live, applied runtime.Object, first bool) {
	if first {
		o.first++
	} else {
		o.again++
	}
	was, _ := meta.Accessor(live)
	is, _ := meta.Accessor(applied)
	updated := func(m metav1.Object) (written string) {
		for _, e := range m.GetManagedFields() {
			if e.Operation == metav1.ManagedFieldsOperationUpdate {
				written += e.FieldsV1.GetRawString()
			}
		}
		return written
	}
	if updated(was) != updated(is) {
		o.taken++
	}
	was.SetManagedFields(nil)
	is = is.(runtime.Object).DeepCopyObject().(metav1.Object)
	is.SetManagedFields(nil)
	if reflect.DeepEqual(was, is) {
		o.unchanged++
	}
}

func hasLists(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			if hasLists(inner) {
				return true
			}
		}
	case []any:
		return true
	}
	return false
}

// plainly returns some fields of an object, or of a changed one, mostly without fields that overlay does not support,
// and every other time without lists.
func (p pair) plainly(t *testing.T, live runtime.Object, fill *randfill.Filler, dice *rand.Rand) *unstructured.Unstructured {
	t.Helper()
	document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.change(t, live, fill, dice))
	if err != nil {
		t.Fatal(err)
	}
	plain(document, dice, 2+dice.IntN(6), dice.IntN(2) == 0)
	applied := &unstructured.Unstructured{Object: document}
	applied.SetGroupVersionKind(p.kind)
	applied.SetManagedFields(nil)
	if dice.IntN(2) == 0 {
		applied.SetAnnotations(map[string]string{"a": fmt.Sprint(dice.IntN(3)), "b": "same"})
	}
	return applied
}

func plain(document map[string]any, dice *rand.Rand, share int, lists bool) {
	for _, key := range slices.Sorted(maps.Keys(document)) {
		seldom := dice.IntN(60) != 0
		switch key {
		case "resources", "capacity", "allocatedResources", "allocatedResourceStatuses": // quantities
			if seldom {
				delete(document, key)
				continue
			}
		}
		switch v := document[key].(type) {
		case map[string]any:
			plain(v, dice, share, lists)
			if len(v) == 0 && seldom {
				delete(document, key)
			}
		case []any:
			if seldom && (!lists || len(v) == 0 || dice.IntN(share) == 0) {
				delete(document, key)
			}
		case nil, float64:
			if seldom {
				delete(document, key)
			}
		case string:
			if seldom && (v == "" || strings.HasPrefix(v, "19") || dice.IntN(share) == 0) {
				delete(document, key)
			}
		case int64:
			if seldom && (v == 0 || dice.IntN(share) == 0) {
				delete(document, key)
			}
		default:
			if seldom && dice.IntN(share) == 0 {
				delete(document, key)
			}
		}
	}
}

// TestOverlay_unsupported applies configurations that structured-merge-diff must handle.
func TestOverlay_unsupported(t *testing.T) {
	t.Parallel()
	p := newPair(t, &corev1.Service{}, nil)
	created := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid", Annotations: map[string]string{"a": "1"}},
		Spec:       corev1.ServiceSpec{ExternalName: "x"},
	}
	live := p.UpdateNoErrors(&corev1.Service{}, created, "creator")
	for _, c := range []struct {
		name, manager string
		force         bool
		configuration map[string]any
		laid          bool
	}{
		{"an annotation", "a", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}}, true},
		{"the same annotation", "a", false, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "1"}}}, true},
		{"kubectl", "kubectl", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}}, true},
		{"a first label", "a", false, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "2"}}}, true},
		{"scalars", "a", false, map[string]any{"spec": map[string]any{"clusterIP": "1.2.3.4", "healthCheckNodePort": int64(4),
			"publishNotReadyAddresses": true, "allocateLoadBalancerNodePorts": false}}, true},
		{"a conflict", "a", false, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}}, false},
		{"kubectl's annotation", "kubectl", true,
			map[string]any{"metadata": map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}},
			false},
		{"no manager", "", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}}, false},
		{"a manager that is no text", "\xff", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}}, false},
		{"nothing", "a", true, map[string]any{}, false},
		{"no annotations", "a", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{}}}, false},
		{"null", "a", true, map[string]any{"metadata": map[string]any{"annotations": nil}}, false},
		{"an annotation that is null", "a", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": nil}}}, false},
		{"an annotation that is a number", "a", true,
			map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": int64(1)}}}, false},
		{"an unknown field", "a", true, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"a": "2"}}, "more": "x"}, false},
		{"a field of another type", "a", true, map[string]any{"spec": map[string]any{"clusterIP": int64(1)}}, false},
		{"a number that is too large", "a", true, map[string]any{"spec": map[string]any{"healthCheckNodePort": int64(1) << 40}}, false},
		{"a zero that is not written", "a", true, map[string]any{"spec": map[string]any{"clusterIP": ""}}, false},
		{"a list", "a", true, map[string]any{"spec": map[string]any{"externalIPs": []any{"1.2.3.4"}}}, true},
		{"an item", "a", true, map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80),
			"targetPort": "http"}}}}, true},
		{"an empty list", "a", true, map[string]any{"spec": map[string]any{"externalIPs": []any{}}}, false},
		{"a list with null", "a", true, map[string]any{"spec": map[string]any{"externalIPs": []any{nil}}}, false},
		{"an item with null", "a", true,
			map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80), "name": nil}}}}, false},
		{"an item with a zero that is not written", "a", true,
			map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80), "name": ""}}}}, false},
		{"an item without a key", "a", true, map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"name": "x"}}}}, false},
		{"an item with an unknown field", "a", true,
			map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80), "more": "x"}}}}, false},
		{"an item with a field of another type", "a", true,
			map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": "80"}}}}, false},
		{"two items that are the same", "a", true,
			map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80)}, map[string]any{"port": int64(80)}}}}, false},
		{"a list that is none", "a", true, map[string]any{"spec": map[string]any{"ports": "80"}}, false},
		{"managed fields", "a", true, map[string]any{"metadata": map[string]any{"managedFields": []any{}}}, false},
		{"what no manager owns", "a", true, map[string]any{"metadata": map[string]any{"name": "web"}}, false},
	} {
		configuration := &unstructured.Unstructured{Object: c.configuration}
		configuration.SetGroupVersionKind(p.kind)
		if laid := p.Overlays(live.DeepCopyObject(), configuration.DeepCopyObject(), c.manager, c.force); laid != c.laid {
			t.Errorf("%s: laid over is %v", c.name, laid)
		}
		theirs, theirErr := p.Upstream().Apply(live.DeepCopyObject(), configuration.DeepCopyObject(), c.manager, c.force)
		ours, ourErr := p.Apply(live.DeepCopyObject(), configuration.DeepCopyObject(), c.manager, c.force)
		if lines(theirErr) != lines(ourErr) {
			t.Errorf("%s: upstream's error %v, ours %v", c.name, theirErr, ourErr)
		}
		if theirErr == nil && withoutTimes(t, theirs) != withoutTimes(t, ours) {
			t.Errorf("%s: upstream's\n%s\nours\n%s", c.name, withoutTimes(t, theirs), withoutTimes(t, ours))
		}
	}
}

// TestApply_resetFields applies to an object whose managers own fields that the endpoint resets, because earlier
// versions recorded them.
func TestApply_resetFields(t *testing.T) {
	t.Parallel()
	plain := newPair(t, &corev1.Service{}, nil)
	filtered := newPair(t, &corev1.Service{}, map[fieldpath.APIVersion]fieldpath.Filter{
		"v1": fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "labels"))),
	})
	created := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid", Labels: map[string]string{"a": "1"}},
		Spec:       corev1.ServiceSpec{ExternalName: "x"},
	}
	live := plain.UpdateNoErrors(&corev1.Service{}, created, "creator")
	age(t, live)
	for _, force := range []bool{false, true} {
		configuration := &unstructured.Unstructured{
			Object: map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "2"}}, "spec": map[string]any{"externalName": "x"}},
		}
		configuration.SetGroupVersionKind(plain.kind)
		if !filtered.Overlays(live.DeepCopyObject(), configuration.DeepCopy(), "a", force) ||
			!filtered.Merges(live.DeepCopyObject(), configuration.DeepCopy(), "a", force) {
			t.Errorf("forced %v: upstream has to apply it", force)
		}
		theirs, err := filtered.Upstream().Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", force)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := filtered.Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", force)
		if err != nil || withoutTimes(t, theirs) != withoutTimes(t, ours) {
			t.Errorf("forced %v: upstream's\n%s\nours\n%s %v", force, withoutTimes(t, theirs), withoutTimes(t, ours), err)
		}
	}
}

// TestApply_reorderedItems applies list items in another order: no field has changed, but the object has.
func TestApply_reorderedItems(t *testing.T) {
	t.Parallel()
	p := newPair(t, &corev1.Service{}, nil)
	created := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
		{
			Name:       "a",
			Port:       80,
			Protocol:   "TCP",
			TargetPort: intstr.FromInt32(1),
		},
		{Name: "b", Port: 443, Protocol: "TCP", TargetPort: intstr.FromInt32(2)},
	}}}
	live := p.UpdateNoErrors(&corev1.Service{}, created, "creator")
	age(t, live)
	port := func(name string, number int64) any {
		return map[string]any{"name": name, "port": number, "protocol": "TCP"}
	}
	for _, ports := range [][]any{{port("a", 80), port("b", 443)}, {port("b", 443), port("a", 80)}, {port("b", 443)}, {port("c", 443)}} {
		configuration := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"ports": ports}}}
		configuration.SetGroupVersionKind(p.kind)
		if !p.Overlays(live.DeepCopyObject(), configuration.DeepCopy(), "a", true) {
			t.Errorf("%v: upstream has to apply them", ports)
		}
		theirs, err := p.Upstream().Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := p.Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		if err != nil || withoutTimes(t, theirs) != withoutTimes(t, ours) {
			t.Errorf("%v: upstream's\n%s\nours\n%s %v", ports, withoutTimes(t, theirs), withoutTimes(t, ours), err)
		}
	}
}

// TestApply_itemOfDefaults applies a list item without its keys, which have defaults: apimachinery removes the item
// when it is applied again.
func TestApply_itemOfDefaults(t *testing.T) {
	t.Parallel()
	p := newPair(t, &corev1.Pod{}, nil)
	claims := []corev1.ResourceClaim{{Name: "a"}, {Name: "b"}}
	created := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "uid"},
		Spec:       corev1.PodSpec{Resources: &corev1.ResourceRequirements{Claims: claims}},
	}
	live := p.UpdateNoErrors(&corev1.Pod{}, created, "creator")
	for _, host := range []string{"x", "x", "y", "y", "z"} {
		age(t, live)
		configuration := &unstructured.Unstructured{
			Object: map[string]any{
				"spec": map[string]any{"hostname": host, "resources": map[string]any{"claims": []any{map[string]any{}, map[string]any{"name": "a"}}}},
			},
		}
		configuration.SetGroupVersionKind(p.kind)
		theirs, theirErr := p.Upstream().Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		ours, ourErr := p.Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		if theirErr != nil || ourErr != nil || withoutTimes(t, theirs) != withoutTimes(t, ours) {
			t.Fatalf("host %s: upstream's\n%s %v\nours\n%s %v", host, withoutTimes(t, theirs), theirErr, withoutTimes(t, ours), ourErr)
		}
		live = theirs
	}
}

// TestApply_newStruct applies some fields of a missing struct, which is then written with more fields.
func TestApply_newStruct(t *testing.T) {
	t.Parallel()
	p := newPair(t, &corev1.Node{}, nil)
	live := p.UpdateNoErrors(
		&corev1.Node{},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "uid"}, Spec: corev1.NodeSpec{ProviderID: "x"}},
		"creator",
	)
	age(t, live)
	configuration := &unstructured.Unstructured{
		Object: map[string]any{"spec": map[string]any{"configSource": map[string]any{"configMap": map[string]any{"namespace": "default"}}}},
	}
	configuration.SetGroupVersionKind(p.kind)
	if p.Overlays(live.DeepCopyObject(), configuration.DeepCopy(), "a", true) {
		t.Error("it is laid over the object")
	}
	theirs, theirErr := p.Upstream().Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
	ours, ourErr := p.Apply(live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
	if theirErr != nil || ourErr != nil || withoutTimes(t, theirs) != withoutTimes(t, ours) {
		t.Errorf("upstream's\n%s %v\nours\n%s %v", withoutTimes(t, theirs), theirErr, withoutTimes(t, ours), ourErr)
	}
}

// TestConfigured_similarForms applies configurations that differ only in names, because the owned fields are cached.
// Some objects have no managed fields, or unreadable ones in a template.
func TestConfigured_similarForms(t *testing.T) {
	t.Parallel()
	of := func(field, inner string, v any) map[string]any {
		return map[string]any{field: map[string]any{inner: v}}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}, Spec: corev1.ServiceSpec{ExternalName: "x"}}
	broken := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}, Spec: appsv1.DeploymentSpec{Paused: true}}
	broken.Spec.Template.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`["x"]`)}}
	services, deployments := newPair(t, service, nil), newPair(t, broken, nil)
	owned := services.Upstream().UpdateNoErrors(&corev1.Service{}, service.DeepCopy(), "creator")
	ofADeployment := broken.DeepCopy()
	ofADeployment.ManagedFields = owned.(*corev1.Service).DeepCopy().ManagedFields
	for i := range ofADeployment.ManagedFields {
		ofADeployment.ManagedFields[i].APIVersion = "apps/v1"
	}
	for _, c := range []struct {
		pair
		live          runtime.Object
		configuration map[string]any
	}{
		{services, owned, of("metadata", "annotations", map[string]any{"a": "1"})},
		{services, owned, of("metadata", "annotations", map[string]any{"b": "1"})},
		{services, owned, of("metadata", "labels", map[string]any{"b": "1"})},
		{services, owned, of("metadata", "finalizers", []any{"a.com/a"})}, {services, owned, of("metadata", "finalizers", []any{"b.com/b"})},
		{services, owned, of("spec", "ports", []any{map[string]any{"port": int64(1)}})},
		{services, owned, of("spec", "ports", []any{map[string]any{"port": int64(2)}})},
		{services, service, of("metadata", "annotations", map[string]any{"a": "1"})},
		{deployments, ofADeployment, of("metadata", "annotations", map[string]any{"a": "1"})},
	} {
		configuration := &unstructured.Unstructured{Object: c.configuration}
		configuration.SetGroupVersionKind(c.kind)
		theirs, theirErr := c.Upstream().Apply(c.live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		ours, ourErr := c.Apply(c.live.DeepCopyObject(), configuration.DeepCopy(), "a", true)
		if lines(theirErr) != lines(ourErr) {
			t.Errorf("%v: upstream's error %v, ours %v", c.configuration, theirErr, ourErr)
		}
		if theirErr == nil && withoutTimes(t, theirs) != withoutTimes(t, ours) {
			t.Errorf("%v: upstream's\n%s\nours\n%s", c.configuration, withoutTimes(t, theirs), withoutTimes(t, ours))
		}
	}
}

// lenient is a string that is decoded to another form than it is encoded in.
type lenient string

// UnmarshalJSON implements json.Unmarshaler.
func (l *lenient) UnmarshalJSON(data []byte) error {
	*l = lenient(strings.ToLower(string(data)))
	return nil
}

// TestReadAlike uses values that change when they are encoded and decoded.
func TestReadAlike(t *testing.T) {
	t.Parallel()
	type hidden struct {
		corev1.ConfigMap
		Hidden string `json:"-"`
	}
	type private struct {
		Inner []struct{ hidden string }
	}
	type node struct {
		Next *node    `json:"next"`
		All  []string `json:"all,omitempty"`
		Some []string `json:"some"`
	}
	type embedded struct{ *node }
	for _, c := range []struct {
		value        any
		alike, known bool
	}{
		{corev1.Pod{}, true, true}, {&corev1.Service{}, true, true}, {metav1.Time{}, true, true}, {&metav1.Time{}, false, true},
		{&metav1.Time{Time: time.Time{}.Local()}, false, true}, {&metav1.MicroTime{Time: time.Time{}.In(time.FixedZone("a", 1))}, false,
			true}, {&metav1.Time{Time: time.Unix(1, 0)}, true, true},
		{corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}}, false, true},
		{corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}, false, true},
		{corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{}}}}}, false, true},
		{corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "a"}}}}}}, true, true},
		{node{Next: &node{}, Some: []string{}}, true, true}, {node{Next: &node{All: []string{}}}, false, true},
		{map[string][]*node{"a": {{All: []string{}}}}, false, true},
		{appsv1.ControllerRevision{}, true, true}, {appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"b":1,"a":2}`)}},
			false, true},
		{new(runtime.RawExtension), false, true}, {struct{ Number *[]int }{}, false, false},
		{hidden{}, false, false}, {private{}, false, false}, {[]any{}, false, false}, {embedded{}, false, false},
		{map[int]string{}, false, false}, {struct{ Text lenient }{}, false, false},
	} {
		if alike, known := managed.ReadAlike(c.value); alike != c.alike || known != c.known {
			t.Errorf("%T %+v: alike %v, known %v", c.value, c.value, alike, known)
		}
	}
}

// BenchmarkApply measures configurations that change one annotation of an object of one kilobyte, some of them with a
// list item: the first of their manager, which takes the changed fields over, and another one with the same fields.
func BenchmarkApply(b *testing.B) {
	p := newPair(b, &corev1.Service{}, nil)
	object := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "web",
			Namespace:   "default",
			UID:         "uid",
			Labels:      map[string]string{"app": "web", "tier": "front"},
			Annotations: map[string]string{"sequence": "1", "note": strings.Repeat("note ", 60)},
		},
	}
	object.Spec = corev1.ServiceSpec{
		Ports:    []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}},
		Selector: map[string]string{"app": "web"},
	}
	created := p.Upstream().UpdateNoErrors(&corev1.Service{}, object, "client")
	annotation := func(i int) *unstructured.Unstructured {
		u := &unstructured.Unstructured{
			Object: map[string]any{"metadata": map[string]any{"annotations": map[string]any{"sequence": fmt.Sprint(i)}}},
		}
		u.SetGroupVersionKind(p.kind)
		return u
	}
	withList := func(i int) *unstructured.Unstructured {
		u := annotation(i)
		u.Object["spec"] = map[string]any{"ports": []any{map[string]any{"name": "http", "port": int64(80), "targetPort": int64(8080)}}}
		return u
	}
	after := func(configuration func(i int) *unstructured.Unstructured) runtime.Object {
		applied, err := p.Upstream().Apply(created.DeepCopyObject(), configuration(2), "applier", true)
		if err != nil {
			b.Fatal(err)
		}
		return applied
	}
	for _, live := range []struct {
		name string
		runtime.Object
		configuration func(i int) *unstructured.Unstructured
	}{{"first", created, annotation}, {"again", after(annotation), annotation}, {"list/first", created, withList},
		{"list/again", after(withList), withList}} {
		for _, m := range []struct {
			name  string
			apply func(live, applied runtime.Object, manager string, force bool) (runtime.Object, error)
		}{{"upstream", p.Upstream().Apply}, {"ours", p.Apply}} {
			b.Run(live.name+"/"+m.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 3; b.Loop(); i++ {
					if _, err := m.apply(live.Object, live.configuration(i), "applier", true); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
