package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/model/define"
)

var podsGroup, otherGroup = schema.GroupResource{
	Group:    "a.example.com",
	Resource: "pods",
}, schema.GroupResource{
	Group:    "b.example.com",
	Resource: "capsules",
}

// hooks is a constructor of a hook that notes its name, and fails with an error.
func hook(log *[]string, name string, mutating bool, err error, on ...admission.Operation) define.AdmissionConstructor {
	return func(any) (define.Admission, error) {
		return define.Admission{Mutating: mutating, On: on, Review: func(_ context.Context, a admission.Attributes) error {
			*log = append(*log, name)
			return err
		}}, nil
	}
}

func podKind() *define.Kind {
	k := &define.Kind{
		Group:    podsGroup.Group,
		Resource: podsGroup.Resource,
		Name:     "Pod",
		Versions: []*define.Version{{Type: reflect.TypeFor[corev1.Pod]()}},
	}
	also := &define.Kind{Group: otherGroup.Group, Resource: otherGroup.Resource, Name: "Capsule", AliasOf: k}
	k.Aliases = []*define.Kind{also}
	return k
}

func serverOf(k *define.Kind) *define.Server {
	s := &define.Server{Groups: []define.Group{{Name: podsGroup.Group, Kinds: []*define.Kind{k}}}}
	if len(k.Aliases) > 0 {
		s.Groups = append(s.Groups, define.Group{Name: otherGroup.Group, Kinds: k.Aliases})
	}
	return s
}

func attributes(resource schema.GroupResource, kind string, operation admission.Operation, subresource string) admission.Attributes {
	var obj, old runtime.Object = &corev1.Pod{}, nil
	if operation == admission.Delete {
		obj, old = nil, &corev1.Pod{}
	}
	gvk := schema.GroupVersionKind{Group: resource.Group, Version: "v1", Kind: kind}
	return admission.NewAttributesRecord(obj, old, gvk, "lab", "p", resource.WithVersion("v1"), subresource, operation, nil, false, nil)
}

func TestHooks_whichRun(t *testing.T) {
	for name, test := range map[string]struct {
		a        admission.Attributes
		admitted string
		reviewed string
	}{
		"create":              {attributes(podsGroup, "Pod", admission.Create, ""), "m1 m2", "v1 v2"},
		"update":              {attributes(podsGroup, "Pod", admission.Update, ""), "m1", "v1"},
		"delete":              {attributes(podsGroup, "Pod", admission.Delete, ""), "", "v1"},
		"of another group":    {attributes(otherGroup, "Capsule", admission.Create, ""), "m1 m2", "v1 v2"},
		"scale, another kind": {attributes(podsGroup, "Scale", admission.Update, "scale"), "", ""},
		"a kind without": {attributes(schema.GroupResource{Group: "c.example.com", Resource: "others"}, "Other", admission.Create, ""),
			"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log []string
			k := podKind()
			k.Admissions = []define.AdmissionConstructor{
				hook(&log, "v1", false, nil), hook(&log, "m1", true, nil), hook(&log, "v2", false, nil, admission.Create),
				hook(&log, "m2", true, nil, admission.Create),
			}
			h, err := NewHooks(serverOf(k), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Admit(t.Context(), test.a, nil); err != nil || strings.Join(log, " ") != test.admitted {
				t.Errorf("mutating are %v, want %s; %v", log, test.admitted, err)
			}
			log = nil
			if err := h.Validate(t.Context(), test.a, nil); err != nil || strings.Join(log, " ") != test.reviewed {
				t.Errorf("validating are %v, want %s; %v", log, test.reviewed, err)
			}
		})
	}
}

// /scale is no way around the hooks of the object.
func TestHooks_scaledObject_isReviewed(t *testing.T) {
	k := podKind()
	scaledPod := &corev1.Pod{}
	k.Admissions = []define.AdmissionConstructor{func(any) (define.Admission, error) {
		return define.Admission{Review: func(_ context.Context, a admission.Attributes) error {
			if a.GetObject() != runtime.Object(scaledPod) {
				return fmt.Errorf("the object is %v", a.GetObject())
			}
			return errors.New("too many")
		}}, nil
	}}
	h, err := NewHooks(serverOf(k), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := attributes(podsGroup, "Scale", admission.Update, "scale")
	if err := h.Validate(WithScaled(t.Context(), scaledPod, &corev1.Pod{}), a, nil); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "too many") {
		t.Errorf("refused with %v", err)
	}
}

func TestHooks_firstRefusal_endsTheReview(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"an error is a 403":     {errors.New("no"), apierrors.IsForbidden},
		"a status stays":        {apierrors.NewTooManyRequestsError("later"), apierrors.IsTooManyRequests},
		"a wrapped status, too": {fmt.Errorf("asked: %w", apierrors.NewBadRequest("what?")), apierrors.IsBadRequest},
	} {
		var log []string
		k := podKind()
		k.Admissions = []define.AdmissionConstructor{hook(&log, "first", false, test.err), hook(&log, "second", false, nil)}
		h, err := NewHooks(serverOf(k), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Validate(t.Context(), attributes(podsGroup, "Pod", admission.Create, ""), nil); !test.want(err) || len(log) != 1 {
			t.Errorf("%s: %v after %v", name, err, log)
		}
	}
}

func TestHooks_connections(t *testing.T) {
	var log []string
	k := podKind()
	k.ConnectAdmissions = []define.AdmissionConstructor{hook(&log, "c", false, errors.New("no"))}
	h, err := NewHooks(serverOf(k), nil)
	if err != nil {
		t.Fatal(err)
	}
	if h.Handles(admission.Connect) || !h.Handles(admission.Create) {
		t.Error("connections are no writes, and creates are")
	}
	if err := h.Connect(t.Context(), attributes(podsGroup, "Pod", admission.Connect, "exec")); !apierrors.IsForbidden(err) ||
		len(log) != 1 {
		t.Errorf("%v after %v", err, log)
	}
}

func TestNewHooks_constructorsThatFail_areAllNamed(t *testing.T) {
	failing := func(any) (define.Admission, error) { return define.Admission{}, errors.New("no client") }
	beside := func(env any) (define.BesideAdmission, error) { return nil, fmt.Errorf("of %v", env) }
	k := podKind()
	k.Admissions, k.ConnectAdmissions = []define.AdmissionConstructor{failing}, []define.AdmissionConstructor{failing}
	k.CreateAdmissions = []func(any) (define.BesideAdmission, error){beside}
	_, err := NewHooks(serverOf(k), "the server")
	for _, want := range []string{
		"admission hook 1 of kind Pod.a.example.com: no client", "admission of connections, hook 1 of kind Pod.a.example.com: no client",
		"admission of creates, hook 1 of kind Pod.a.example.com: of the server",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

func TestBeside_aliases_haveTheHooksOfTheirPrimary(t *testing.T) {
	k := podKind()
	k.UpdateAdmissions = []func(any) (define.BesideAdmission, error){func(any) (define.BesideAdmission, error) {
		return func(context.Context, admission.Attributes, []runtime.Object) error { return nil }, nil
	}}
	h, err := NewHooks(serverOf(k), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range []schema.GroupResource{podsGroup, otherGroup} {
		if creates, updates := h.Beside(resource); len(creates) != 0 || len(updates) != 1 {
			t.Errorf("%s: %d of creates, %d of updates", resource, len(creates), len(updates))
		}
	}
}

const configuration = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n"

func TestReadConfiguration(t *testing.T) {
	for name, test := range map[string]struct{ text, a, mistake string }{
		"in the file":  {configuration + "plugins: [{name: A, configuration: {x: 1}}]\n", `{"x":1}`, ""},
		"another file": {configuration + "plugins: [{name: A, path: a.yaml}]\n", "of a file\n", ""},
		"neither":      {configuration + "plugins: [{name: A}]\n", "", ""},
		"nothing":      {configuration, "", ""},
		"both": {configuration + "plugins: [{name: A, path: a.yaml, configuration: {}}]\n", "",
			"plugins[0].path: path and configuration exclude each other: set one of them"},
		"no name":       {configuration + "plugins: [{path: a.yaml}]\n", "", "plugins[0].name: it is missing"},
		"unknown":       {configuration + "plugins: [{name: A}, {name: C}]\n", "", `plugins[1].name: unknown plugin "C"; there are A, B`},
		"twice":         {configuration + "plugins: [{name: A}, {name: A}]\n", "", `plugins[1].name: "A" is configured already`},
		"missing file":  {configuration + "plugins: [{name: A, path: none.yaml}]\n", "", "plugins[0].path: open "},
		"unknown field": {configuration + "plugin: []\n", "", `unknown field "plugin"`},
		"another kind": {"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n", "",
			"not an AdmissionConfiguration of apiserver.config.k8s.io/v1"},
		"no YAML": {"{", "", "Options.Admission.ConfigFile "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "admission.yaml")
			for path, text := range map[string]string{file: test.text, filepath.Join(dir, "a.yaml"): "of a file\n"} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			provider, err := ReadConfiguration(file, []string{"A", "B"})
			if (err == nil) != (test.mistake == "") || err != nil && !strings.Contains(err.Error(), test.mistake) {
				t.Fatalf("want %q, got %v", test.mistake, err)
			}
			if err != nil {
				return
			}
			reader, err := provider.ConfigFor("A")
			var got []byte
			if reader != nil {
				got, err = io.ReadAll(reader)
			}
			if err != nil || string(got) != test.a || (reader == nil) != (test.a == "") {
				t.Errorf("the configuration is %q, want %q; %v", got, test.a, err)
			}
		})
	}
	if provider, err := ReadConfiguration("", nil); err != nil || provider == nil {
		t.Errorf("without a file: %v, %v", provider, err)
	}
	if _, err := ReadConfiguration(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

// labelled is a plugin that mutates and validates.
type labelled struct {
	*admission.Handler
	log *[]string
	err error
}

func (p labelled) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	*p.log = append(*p.log, "admit")
	return nil
}

func (p labelled) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	*p.log = append(*p.log, "validate")
	return p.err
}

func TestDeclared_plugins(t *testing.T) {
	var log []string
	wrapped := fmt.Errorf("asked: %w", apierrors.NewBadRequest("what?"))
	plugins := NewPlugins([]define.AdmissionPlugin{
		{Name: "Good", New: func(env any, configuration io.Reader) (admission.Interface, error) {
			log = append(log, fmt.Sprintf("%v %v", env, configuration))
			return labelled{admission.NewHandler(admission.Create), &log, wrapped}, nil
		}},
		{Name: "None", New: func(any, io.Reader) (admission.Interface, error) { return nil, nil }},
		{Name: "Bad", New: func(any, io.Reader) (admission.Interface, error) { return nil, errors.New("no client") }},
	}, "env", Initialization{})
	good, err := plugins[0].Make(nil)
	if err != nil {
		t.Fatal(err)
	}
	a := attributes(podsGroup, "Pod", admission.Create, "")
	if err := good.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
		t.Error(err)
	}
	// Upstream's handlers know a status only if it is not wrapped.
	if _, is := good.(admission.ValidationInterface).Validate(t.Context(), a, nil).(apierrors.APIStatus); !is {
		t.Error("the error is no status")
	}
	if want := []string{"env <nil>", "admit", "validate"}; !slices.Equal(log, want) {
		t.Errorf("called were %q, want %q", log, want)
	}
	if good.Handles(admission.Delete) {
		t.Error("it handles what its plugin does not")
	}
	for i, want := range map[int]string{1: "its constructor returned no plugin", 2: "no client"} {
		if _, err := plugins[i].Make(nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", plugins[i].Name, err, want)
		}
	}
}

func TestChain_mutatesBeforeItValidates(t *testing.T) {
	var log []string
	handler := admission.NewHandler(admission.Create)
	chain, err := Chain(
		nil,
		[]Plugin{NewPlugin("A", labelled{handler, &log, nil}), NewPlugin("B", labelled{handler, &log, nil})},
		configurations{},
		admission.PluginInitializers{},
	)
	if err != nil {
		t.Fatal(err)
	}
	a := attributes(podsGroup, "Pod", admission.Create, "")
	if err := chain.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
		t.Error(err)
	}
	if err := chain.(admission.ValidationInterface).Validate(t.Context(), a, nil); err != nil {
		t.Error(err)
	}
	if want := "admit admit validate validate"; strings.Join(log, " ") != want {
		t.Errorf("called were %q, want %s", log, want)
	}
	if _, err := Chain(nil, []Plugin{{Name: "Unknown"}}, configurations{}, admission.PluginInitializers{}); err == nil ||
		!strings.HasPrefix(err.Error(), "admission: ") {
		t.Errorf("a plugin that is not known: %v", err)
	}
}
