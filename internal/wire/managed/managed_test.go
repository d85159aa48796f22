package managed_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/wire/managed"
)

// oneVersion converts between a version and the internal one, which is the same Go type.
type oneVersion struct {
	runtime.ObjectConvertor
	kind schema.GroupVersionKind
}

func (c oneVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	target, ok := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{c.kind})
	if !ok {
		return nil, runtime.NewNotRegisteredErrForTarget("test", reflect.TypeOf(in), gv)
	}
	if document, ok := in.(*unstructured.Unstructured); ok {
		out, err := scheme.Scheme.New(c.kind)
		if err != nil {
			return nil, err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(document.Object, out); err != nil {
			return nil, err
		}
		in = out
	}
	in.GetObjectKind().SetGroupVersionKind(target)
	return in, nil
}

// internally converts the internal version to the version of the kind.
type internally struct{ oneVersion }

func (c internally) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	if version, ok := gv.(schema.GroupVersion); ok && version.Version == runtime.APIVersionInternal {
		gv = c.kind.GroupVersion()
	}
	return c.oneVersion.ConvertToVersion(in, gv)
}

type noDefaults struct{}

func (noDefaults) Default(runtime.Object) {}

// kinds cover structs, maps, lists that are maps, sets or atomic, pointers, quantities, ports that are numbers or
// names, and embedded structs.
var kinds = map[string]runtime.Object{
	"Deployment":            &appsv1.Deployment{},
	"Pod":                   &corev1.Pod{},
	"Service":               &corev1.Service{},
	"ConfigMap":             &corev1.ConfigMap{},
	"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{},
	"Secret":                &corev1.Secret{},
	"Node":                  &corev1.Node{},
	"Job":                   &batchv1.Job{},
	"Ingress":               &networkingv1.Ingress{},
	"NetworkPolicy":         &networkingv1.NetworkPolicy{},
	"Role":                  &rbacv1.Role{},
	"ControllerRevision":    &appsv1.ControllerRevision{},
}

// random fills objects with few different values, so that some changes change nothing and some list items are equal.
func random(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.5).NumElements(0, 3).MaxDepth(14).Funcs(
		func(s *string, c randfill.Continue) { *s = []string{"", "a", "b", "c"}[c.Intn(4)] },
		func(i *int32, c randfill.Continue) { *i = int32(c.Intn(3)) },
		func(i *int64, c randfill.Continue) { *i = int64(c.Intn(3)) },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse([]string{"0", "1", "1000m", "2Gi"}[c.Intn(4)])
		},
		func(t *metav1.Time, c randfill.Continue) {
			*t = metav1.Time{}
			if c.Bool() {
				*t = metav1.Unix(int64(c.Intn(3))*1000, 0)
			}
		},
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.Unix(int64(c.Intn(3)), 0))
		},
		func(r *runtime.RawExtension, c randfill.Continue) {
			r.Raw = []byte(`{"a":` + fmt.Sprint(c.Intn(3)) + `}`)
		},
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			m.ManagedFields = nil
			m.Name, m.UID = "object", types.UID("uid")
		},
		func(m *metav1.TypeMeta, _ randfill.Continue) {},
	)
}

// pair is the manager of apimachinery and the manager of this package for one kind.
type pair struct {
	kind schema.GroupVersionKind
	managed.Config
	*managed.Manager
}

func newPair(t testing.TB, sample runtime.Object, reset map[fieldpath.APIVersion]fieldpath.Filter) pair {
	t.Helper()
	return newPairWith(t, sample, reset, noDefaults{})
}

func newPairWith(
	t testing.TB,
	sample runtime.Object,
	reset map[fieldpath.APIVersion]fieldpath.Filter,
	defaulter runtime.ObjectDefaulter,
) pair {
	t.Helper()
	known, _, err := scheme.Scheme.ObjectKinds(sample)
	if err != nil {
		t.Fatal(err)
	}
	c := managed.Config{
		Types: applyconfigurations.NewTypeConverter(scheme.Scheme), Convertor: internally{oneVersion{scheme.Scheme, known[0]}},
		Defaulter: defaulter, Creater: scheme.Scheme, Kind: known[0], Reset: reset,
	}
	m, err := managed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return pair{known[0], c, m}
}

// withoutTimes returns the encoding of an object in which the times of managers only show whether they are set.
func withoutTimes(t *testing.T, obj runtime.Object) string {
	t.Helper()
	obj = obj.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	fields := m.GetManagedFields()
	for i := range fields {
		if fields[i].Time != nil {
			now := metav1.Unix(1e9, 0)
			if since := time.Since(fields[i].Time.Time); since > time.Hour {
				now = metav1.Unix(1e8, 0) // an old time
			}
			fields[i].Time = &now
		}
	}
	written, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(written)
}

// TestManager_matchesUpstream applies the same creates, updates and configurations of several clients by both managers,
// and compares the objects byte for byte.
func TestManager_matchesUpstream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compares thousands of random objects")
	}
	for name, sample := range kinds {
		for _, filtered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, filtered), func(t *testing.T) {
				t.Parallel()
				var reset map[fieldpath.APIVersion]fieldpath.Filter
				known, _, err := scheme.Scheme.ObjectKinds(sample)
				if err != nil {
					t.Fatal(err)
				}
				if filtered {
					reset = map[fieldpath.APIVersion]fieldpath.Filter{
						fieldpath.APIVersion(known[0].GroupVersion().String()): fieldpath.NewExcludeSetFilter(
							fieldpath.NewSet(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("metadata", "labels")),
						),
					}
				}
				p := newPair(t, sample, reset)
				if err := p.Unknown(); err != nil {
					t.Fatalf("all of it is upstream's: %v", err)
				}
				for seed := range int64(60) {
					p.follow(t, sample, seed)
				}
			})
		}
	}
}

func (p pair) follow(t *testing.T, sample runtime.Object, seed int64) {
	t.Helper()
	fill, dice := random(seed), rand.New(rand.NewPCG(uint64(seed), 1))
	empty := func() runtime.Object {
		obj, err := scheme.Scheme.New(p.kind)
		if err != nil {
			t.Fatal(err)
		}
		return obj
	}
	created := sample.DeepCopyObject()
	fill.Fill(created)
	theirs := p.Upstream().UpdateNoErrors(empty(), created.DeepCopyObject(), "creator")
	ours := p.UpdateNoErrors(empty(), created.DeepCopyObject(), "creator")
	same := func(what string) bool {
		t.Helper()
		if a, b := withoutTimes(t, theirs), withoutTimes(t, ours); a != b {
			t.Errorf("seed %d, %s: upstream's\n%s\nours\n%s", seed, what, a, b)
			return false
		}
		return true
	}
	if !same("create") {
		return
	}
	for step := range 12 {
		live, what := theirs.DeepCopyObject(), ""
		age(t, live)
		manager := fmt.Sprintf("m%d", dice.IntN(3))
		if dice.IntN(40) == 0 {
			manager = ""
		}
		changed := p.change(t, live, fill, dice)
		m, _ := meta.Accessor(changed)
		switch dice.IntN(8) {
		case 0:
			m.SetManagedFields(nil)
		case 1:
			m.SetManagedFields([]metav1.ManagedFieldsEntry{{}})
		case 2:
			if fields := m.GetManagedFields(); len(fields) > 0 {
				fields[0].FieldsV1 = metav1.NewFieldsV1(
					[]string{`{}`, `{"f:spec":{}}`, `{"f:metadata":{"f:managedFields":{}},"f:spec":{".":{},"f:replicas":{}}}`,
						`["nonsense"]`}[dice.IntN(4)],
				)
			}
		}
		if dice.IntN(3) == 0 {
			what = fmt.Sprintf("step %d, apply by %s", step, manager)
			force := dice.IntN(2) == 0
			applied := p.configuration(t, changed, dice)
			a, theirErr := p.Upstream().Apply(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force)
			b, ourErr := p.Apply(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force)
			if lines(theirErr) != lines(ourErr) {
				t.Errorf("seed %d, %s: upstream's error\n%v\nours\n%v", seed, what, theirErr, ourErr)
				return
			}
			if theirErr != nil {
				continue
			}
			theirs, ours = a, b
		} else {
			what = fmt.Sprintf("step %d, update by %s of\n%s\nto\n%s", step, manager, withoutTimes(t, live), withoutTimes(t, changed))
			theirs = p.Upstream().UpdateNoErrors(live.DeepCopyObject(), changed.DeepCopyObject(), manager)
			ours = p.UpdateNoErrors(live.DeepCopyObject(), changed.DeepCopyObject(), manager)
		}
		if !same(what) {
			return
		}
	}
}

// age sets the times of all managers to a long time ago, in their order. Otherwise the order would depend on when a
// second begins.
func age(t *testing.T, obj runtime.Object) {
	t.Helper()
	m, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.GetManagedFields() {
		m.GetManagedFields()[i].Time = &metav1.Time{Time: time.Unix(int64(1000+i/2), 0)}
	}
}

// lines returns the sorted lines of an error, whose order is that of a map.
func lines(err error) string {
	all := strings.Split(fmt.Sprint(err), "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// change returns an object with no, few, or nearly all fields changed.
func (p pair) change(t *testing.T, live runtime.Object, fill *randfill.Filler, dice *rand.Rand) runtime.Object {
	t.Helper()
	changed := live.DeepCopyObject()
	m, err := meta.Accessor(changed)
	if err != nil {
		t.Fatal(err)
	}
	switch dice.IntN(4) {
	case 0:
	case 1:
		m.SetAnnotations(map[string]string{"a": fmt.Sprint(dice.IntN(3)), "b": "same"})
		m.SetResourceVersion(fmt.Sprint(dice.IntN(9)))
		m.SetGeneration(int64(dice.IntN(9)))
	default:
		other := reflect.New(reflect.TypeOf(live).Elem()).Interface().(runtime.Object)
		fill.Fill(other)
		mix(reflect.ValueOf(changed).Elem(), reflect.ValueOf(other).Elem(), dice, 0)
	}
	return changed
}

// mix copies some fields.
func mix(to, from reflect.Value, dice *rand.Rand, depth int) {
	if to.Kind() != reflect.Struct || to.Type() == reflect.TypeFor[metav1.TypeMeta]() {
		return
	}
	for i := range to.NumField() {
		if !to.Type().Field(i).IsExported() || to.Type().Field(i).Name == "ManagedFields" {
			continue
		}
		switch {
		case to.Field(i).Kind() == reflect.Struct && depth < 5:
			mix(to.Field(i), from.Field(i), dice, depth+1)
		case dice.IntN(4) == 0:
			to.Field(i).Set(from.Field(i))
		}
	}
}

// configuration returns some fields of an object as a configuration.
func (p pair) configuration(t *testing.T, obj runtime.Object, dice *rand.Rand) runtime.Object {
	t.Helper()
	document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	some(document, dice, 0)
	applied := &unstructured.Unstructured{Object: document}
	applied.SetGroupVersionKind(p.kind)
	applied.SetManagedFields(nil)
	applied.SetName("object")
	return applied
}

func some(document map[string]any, dice *rand.Rand, depth int) {
	for key, v := range document {
		if dice.IntN(3) == 0 {
			delete(document, key)
		} else if inner, ok := v.(map[string]any); ok && depth < 3 {
			some(inner, dice, depth+1)
		}
	}
}

// BenchmarkUpdate measures the update of one annotation of an object of one kilobyte, and its creation.
func BenchmarkUpdate(b *testing.B) {
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
	live := p.Upstream().UpdateNoErrors(&corev1.Service{}, object.DeepCopy(), "kubectl")
	changed := live.DeepCopyObject().(*corev1.Service)
	changed.Annotations["sequence"] = "2"
	for _, m := range []struct {
		name   string
		update func(live, changed runtime.Object, manager string) runtime.Object
	}{{"upstream", p.Upstream().UpdateNoErrors}, {"ours", p.UpdateNoErrors}} {
		b.Run("create/"+m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				object.ManagedFields = nil
				m.update(&corev1.Service{}, object, "kubectl")
			}
		})
		b.Run("update/"+m.name, func(b *testing.B) {
			b.ReportAllocs()
			fields := changed.ManagedFields
			for b.Loop() {
				changed.ManagedFields = fields
				m.update(live, changed, "controller")
			}
		})
	}
}

// TestShape_matchesUpstream creates objects with the fields of earlier objects and other values, and compares with the
// manager of apimachinery.
func TestShape_matchesUpstream(t *testing.T) {
	t.Parallel()
	for name, sample := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gv := func(p pair) fieldpath.APIVersion { return fieldpath.APIVersion(p.kind.GroupVersion().String()) }
			plain := newPair(t, sample, nil)
			filtered := newPair(t, sample, map[fieldpath.APIVersion]fieldpath.Filter{
				gv(plain): fieldpath.NewExcludeSetFilter(
					fieldpath.NewSet(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("metadata", "labels")),
				),
			})
			for seed := range int64(60) {
				fill := random(seed)
				if seed%2 == 0 {
					fill.NumElements(0, 0)
				}
				obj := sample.DeepCopyObject()
				fill.Fill(obj)
				for _, p := range []pair{plain, filtered} {
					for round := range 3 {
						empty, err := scheme.Scheme.New(p.kind)
						if err != nil {
							t.Fatal(err)
						}
						created := obj.DeepCopyObject()
						if round == 2 {
							revalue(reflect.ValueOf(created).Elem())
						}
						manager := []string{"a", "b", ""}[round]
						theirs := withoutTimes(t, p.Upstream().UpdateNoErrors(empty.DeepCopyObject(), created.DeepCopyObject(), manager))
						ours := withoutTimes(t, p.UpdateNoErrors(empty.DeepCopyObject(), created.DeepCopyObject(), manager))
						if ours != theirs {
							t.Errorf("seed %d, round %d: upstream's\n%s\nours\n%s", seed, round, theirs, ours)
							return
						}
					}
				}
			}
		})
	}
}

// revalue changes values of an object, but not which fields it has.
func revalue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() && v.Len() > 0 {
			v.SetString(v.String() + "z")
		}
	case reflect.Int32, reflect.Int64:
		if v.CanSet() && v.Int() != 0 {
			v.SetInt(v.Int() + 5)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			revalue(v.Elem())
		}
	case reflect.Struct:
		if v.Type().Implements(reflect.TypeFor[json.Marshaler]()) {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				revalue(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			revalue(v.Index(i))
		}
	case reflect.Map:
		if v.Type() == reflect.TypeFor[map[string]string]() {
			for _, key := range v.MapKeys() {
				v.SetMapIndex(key, reflect.ValueOf("another"))
			}
		}
	}
}

// TestReapply_matchesUpstream applies some fields of an object, and then the same fields with the same or other values,
// with fewer, more, null or empty ones, while other managers own some of the fields. It compares with the manager of
// apimachinery.
func TestReapply_matchesUpstream(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compares thousands of random objects")
	}
	for name, sample := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain := newPair(t, sample, nil)
			filtered := newPair(t, sample, map[fieldpath.APIVersion]fieldpath.Filter{
				fieldpath.APIVersion(plain.kind.GroupVersion().String()): fieldpath.NewExcludeSetFilter(
					fieldpath.NewSet(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("metadata", "labels")),
				),
			})
			var count merged
			for seed := range int64(15) {
				for _, p := range []pair{plain, filtered} {
					p.reapplications(t, sample, seed, &count)
				}
			}
			if count.first == 0 || count.again == 0 || count.forced == 0 {
				t.Errorf("too little has been applied without upstream's manager: %+v", count)
			}
		})
	}
}

// FuzzReapply is TestReapply_matchesUpstream with other seeds.
func FuzzReapply(f *testing.F) {
	fuzzKinds(f, func(t *testing.T, p pair, sample runtime.Object, seed int64) {
		p.reapplications(t, sample, seed, &merged{})
	})
}

// fuzzKinds runs a test for each of the kinds with seeds.
func fuzzKinds(f *testing.F, test func(t *testing.T, p pair, sample runtime.Object, seed int64)) {
	var pairs []pair
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		pairs = append(pairs, newPair(f, kinds[name], nil))
	}
	f.Add(int64(1), uint8(0))
	f.Fuzz(func(t *testing.T, seed int64, kind uint8) {
		p := pairs[int(kind)%len(pairs)]
		sample, err := scheme.Scheme.New(p.kind)
		if err != nil {
			t.Fatal(err)
		}
		test(t, p, sample, seed)
	})
}

// merged counts the configurations that merge has applied: the first ones of a manager, repeated ones, and forced ones,
// which take fields over from other owners.
type merged struct{ first, again, forced int }

func (p pair) reapplications(t *testing.T, sample runtime.Object, seed int64, count *merged) {
	t.Helper()
	fill, dice := random(seed), rand.New(rand.NewPCG(uint64(seed), 2))
	created := sample.DeepCopyObject()
	fill.Fill(created)
	live := p.Upstream().UpdateNoErrors(sample.DeepCopyObject(), created, "creator")
	var last [3]runtime.Object
	for step := range 14 {
		by := dice.IntN(len(last))
		manager := []string{"a", "b", "kubectl"}[by]
		var applied runtime.Object
		if last[by] == nil || dice.IntN(6) == 0 {
			applied = p.configuration(t, p.change(t, live, fill, dice), dice)
		} else {
			applied = last[by].DeepCopyObject()
			revalueDocument(applied.(*unstructured.Unstructured).Object, dice)
			applied.GetObjectKind().SetGroupVersionKind(p.kind)
			applied.(*unstructured.Unstructured).SetName("object")
		}
		if dice.IntN(5) == 0 {
			live = p.Upstream().UpdateNoErrors(live, p.change(t, live, fill, dice), "updater")
		}
		age(t, live)
		force := dice.IntN(3) > 0
		theirs, theirErr := p.Upstream().Apply(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force)
		before := live.DeepCopyObject()
		ours, ourErr := p.Apply(before, applied.DeepCopyObject(), manager, force)
		if lines(theirErr) != lines(ourErr) {
			t.Errorf("seed %d, step %d: upstream's error\n%v\nours\n%v", seed, step, theirErr, ourErr)
			return
		}
		if theirErr != nil {
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
		if !reflect.DeepEqual(before, live) {
			t.Errorf("seed %d, step %d: the live object has changed", seed, step)
		}
		if p.Merges(live.DeepCopyObject(), applied.DeepCopyObject(), manager, force) {
			if last[by] == nil {
				count.first++
			} else {
				count.again++
			}
			if force && !p.Merges(live.DeepCopyObject(), applied.DeepCopyObject(), manager, false) {
				count.forced++
			}
		}
		live, last[by] = theirs, applied
	}
}

// revalueDocument changes some values of a document, and rarely which fields it has.
func revalueDocument(document map[string]any, dice *rand.Rand) {
	for _, key := range slices.Sorted(maps.Keys(document)) {
		switch v := document[key].(type) {
		case map[string]any:
			revalueDocument(v, dice)
		case []any:
			for _, item := range v {
				if inner, ok := item.(map[string]any); ok {
					revalueDocument(inner, dice)
				}
			}
		case string:
			if dice.IntN(8) == 0 {
				document[key] = []string{"a", "b", "c"}[dice.IntN(3)]
			}
		case int64:
			if dice.IntN(4) == 0 {
				document[key] = int64(dice.IntN(3))
			}
		}
		switch dice.IntN(150) {
		case 0:
			delete(document, key)
		case 1:
			document[key] = nil
		case 2:
			if _, ok := document[key].(map[string]any); ok {
				document[key] = map[string]any{}
			}
		}
	}
}
