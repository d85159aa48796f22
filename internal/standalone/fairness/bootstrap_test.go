package fairness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

// stored contains the objects of one kind, and records writes.
type stored[P configObject] struct {
	mu      sync.Mutex
	there   map[string]P
	written []string
	refuse  error
}

func (f *stored[P]) write(verb string, obj P) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written = append(f.written, verb+" "+obj.GetName())
	if f.refuse == nil {
		f.there[obj.GetName()] = obj
	}
	return f.refuse
}

func (f *stored[P]) Create(_ context.Context, obj P, _ metav1.CreateOptions) (P, error) {
	return obj, f.write("create", obj)
}

func (f *stored[P]) Update(_ context.Context, obj P, _ metav1.UpdateOptions) (P, error) {
	return obj, f.write("update", obj)
}

func (f *stored[P]) Delete(_ context.Context, name string, o metav1.DeleteOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.Preconditions == nil || *o.Preconditions.ResourceVersion != f.there[name].GetResourceVersion() {
		return errors.New("it may not be what was looked at")
	}
	f.written = append(f.written, "delete "+name)
	delete(f.there, name)
	return nil
}

func (f *stored[P]) list() ([]P, error) { return slices.Collect(maps.Values(f.there)), nil }

// settle returns the writes of one call of ensure, in order.
func settle[P configObject](t *testing.T, s requiredObjects[P], f *stored[P]) string {
	t.Helper()
	f.written = nil
	if _, err := s.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(f.written)
	return strings.Join(f.written, ", ")
}

func storedFlowSchemas(t *testing.T) (requiredObjects[*flowcontrolv1.FlowSchema], *stored[*flowcontrolv1.FlowSchema]) {
	t.Helper()
	f := &stored[*flowcontrolv1.FlowSchema]{there: map[string]*flowcontrolv1.FlowSchema{}}
	s := flowSchemas(f, f.list)
	settle(t, s, f)
	for _, obj := range f.there {
		obj.Generation, obj.ResourceVersion = 1, "1"
	}
	return s, f
}

func TestEnsure_emptyServer(t *testing.T) {
	t.Parallel()
	s, f := storedFlowSchemas(t)
	if want := len(bootstrap.MandatoryFlowSchemas) + len(bootstrap.SuggestedFlowSchemas); len(f.there) != want || len(f.written) != want {
		t.Errorf("%d objects by %q, want %d", len(f.there), f.written, want)
	}
	for _, obj := range f.there {
		if obj.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
			t.Errorf("%s has the annotations %v", obj.Name, obj.Annotations)
		}
	}
	if again := settle(t, s, f); again != "" {
		t.Errorf("the next round writes %s", again)
	}
}

// The rules are those of kube-apiserver, as documented in api/flowcontrol/v1 at AutoUpdateAnnotationKey.
func TestEnsure_autoUpdate(t *testing.T) {
	t.Parallel()
	const suggested, key = "probes", flowcontrolv1.AutoUpdateAnnotationKey
	for _, test := range []struct {
		name, object string
		change       func(*flowcontrolv1.FlowSchema)
		writes       string // the expected writes
		annotation   string
		precedence   int32
	}{
		{"a suggested one with another spec", suggested, func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = 7 }, "update",
			"true", 2},
		{"a suggested one that is to stay", suggested, func(s *flowcontrolv1.FlowSchema) {
			s.Annotations[key], s.Spec.MatchingPrecedence = "false", 7
		}, "", "false", 7},
		{"a suggested one whose annotation is gone", suggested, func(s *flowcontrolv1.FlowSchema) { s.Annotations = nil }, "update", "true", 2},
		{"a suggested one of another release, without the annotation", suggested, func(s *flowcontrolv1.FlowSchema) {
			s.Annotations, s.Spec.MatchingPrecedence = nil, 7
		}, "update", "true", 2},
		{"a suggested one that was changed, without the annotation", suggested, func(s *flowcontrolv1.FlowSchema) {
			s.Annotations, s.Spec.MatchingPrecedence, s.Generation = nil, 7, 2
		}, "update", "false", 7},
		{"a suggested one that was changed, whose annotation is no boolean", suggested, func(s *flowcontrolv1.FlowSchema) {
			s.Annotations[key], s.Spec.MatchingPrecedence, s.Generation = "perhaps", 7, 2
		}, "update", "false", 7},
		{"a suggested one with other metadata", suggested, func(s *flowcontrolv1.FlowSchema) { s.Labels = map[string]string{"a": "b"} }, "",
			"true", 2},
		{"a mandatory one with another spec", "catch-all", func(s *flowcontrolv1.FlowSchema) { s.Spec.MatchingPrecedence = 7 }, "update",
			"true", 10000},
		{"a mandatory one that is to stay", "catch-all", func(s *flowcontrolv1.FlowSchema) {
			s.Annotations[key], s.Spec.MatchingPrecedence = "false", 7
		}, "update", "true", 10000},
		{"a mandatory one without the annotation", "exempt", func(s *flowcontrolv1.FlowSchema) { s.Annotations, s.Generation = nil, 5 },
			"update", "true", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, f := storedFlowSchemas(t)
			test.change(f.there[test.object])
			want := ""
			if test.writes != "" {
				want = test.writes + " " + test.object
			}
			if got := settle(t, s, f); got != want {
				t.Errorf("it writes %q, want %q", got, want)
			}
			now := f.there[test.object]
			if now.Annotations[key] != test.annotation || now.Spec.MatchingPrecedence != test.precedence || now.ResourceVersion != "1" {
				t.Errorf("it is %v now, of precedence %d and version %q", now.Annotations, now.Spec.MatchingPrecedence, now.ResourceVersion)
			}
			if again := settle(t, s, f); again != "" {
				t.Errorf("the next round writes %s", again)
			}
		})
	}
}

func TestEnsure_noLongerSuggested_isDeleted(t *testing.T) {
	t.Parallel()
	s, f := storedFlowSchemas(t)
	for name, annotation := range map[string]string{"gone": "true", "kept": "false", "own": ""} {
		obj := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "9"}}
		if annotation != "" {
			obj.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: annotation}
		}
		f.there[name] = obj
	}
	delete(f.there, "probes")
	if got, want := settle(t, s, f), "create probes, delete gone"; got != want {
		t.Errorf("it writes %s, want %s", got, want)
	}
}

func TestEnsure_exemptLevel_keepsLending(t *testing.T) {
	t.Parallel()
	f := &stored[*flowcontrolv1.PriorityLevelConfiguration]{there: map[string]*flowcontrolv1.PriorityLevelConfiguration{}}
	s := priorityLevels(f, f.list)
	settle(t, s, f)
	if len(f.there) != 8 {
		t.Errorf("%d priority levels", len(f.there))
	}
	exempt := f.there["exempt"]
	exempt.Spec.Exempt.NominalConcurrencyShares = new(int32(7))
	if got := settle(t, s, f); got != "" {
		t.Errorf("with other shares, it writes %s", got)
	}
	exempt.Spec.Exempt = nil
	if got := settle(t, s, f); got != "update exempt" || *f.there["exempt"].Spec.Exempt.NominalConcurrencyShares != 0 {
		t.Errorf("without any, it writes %s: %v", got, f.there["exempt"].Spec)
	}
	f.there["catch-all"].Spec.Limited.NominalConcurrencyShares = new(int32(6))
	f.there["system"].Spec.Limited.NominalConcurrencyShares = new(int32(6))
	if got := settle(t, s, f); got != "update catch-all, update system" {
		t.Errorf("with other shares of limited levels, it writes %s", got)
	}
}

// Another replica, or a user, may write at the same time and be faster.
func TestEnsure_overtaken(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Resource: "flowschemas"}
	for _, test := range []struct {
		err       error
		want      string
		overtaken bool
	}{
		{apierrors.NewAlreadyExists(resource, "probes"), "", true},
		{apierrors.NewConflict(resource, "probes", errors.New("x")), "", true},
		{apierrors.NewNotFound(resource, "probes"), "", true},
		{apierrors.NewForbidden(resource, "probes", errors.New("x")), `create the flow schema probes: flowschemas "probes" is forbidden: x`,
			false},
	} {
		s, f := storedFlowSchemas(t)
		delete(f.there, "probes")
		f.refuse = test.err
		overtaken, err := s.ensure(t.Context())
		if got := fmt.Sprint(err); got != cmp.Or(test.want, "<nil>") || overtaken != test.overtaken {
			t.Errorf("%v: %s, overtaken: %t", test.err, got, overtaken)
		}
	}
}
