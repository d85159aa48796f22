package define

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex/api"
)

// Gadget is a kind that has all fields which definitions name.
type Gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GadgetSpec   `json:"spec"`
	Status GadgetStatus `json:"status,omitempty"`
}

type GadgetSpec struct {
	Replicas int32  `json:"replicas"`
	Color    string `json:"color"`
}

type GadgetStatus struct {
	Replicas int32  `json:"replicas"`
	Selector string `json:"selector"`
}

func (g *Gadget) DeepCopyObject() runtime.Object { out := *g; return &out }

type GadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Gadget `json:"items"`
}

func (l *GadgetList) DeepCopyObject() runtime.Object { out := *l; return &out }

// Bare has the name of no kind, and no metadata.
type Bare struct{ metav1.TypeMeta }

func (b *Bare) DeepCopyObject() runtime.Object { out := *b; return &out }

func gadgetVersion(version string) *Version {
	gv := schema.GroupVersion{Group: "tools.example.com", Version: version}
	return &Version{Type: reflect.TypeFor[Gadget](), ListType: reflect.TypeFor[GadgetList](), Facts: func() api.Facts {
		return api.Facts{GroupVersion: gv, AddToScheme: func(s *runtime.Scheme) error {
			s.AddKnownTypes(gv, &Gadget{}, &GadgetList{})
			metav1.AddToGroupVersion(s, gv)
			return nil
		}}
	}}
}

// gadgets is a definition without mistakes, and its only kind.
func gadgets() (*Server, *Kind) {
	k := &Kind{Resource: "gadgets", Versions: []*Version{gadgetVersion("v1")}}
	return &Server{Name: "tools", Groups: []Group{{Name: "tools.example.com", Kinds: []*Kind{k}}}}, k
}

func TestCheck_definitionWithoutMistakes(t *testing.T) {
	s, k := gadgets()
	for range 2 { // it may be called again
		if err := Check(s); err != nil {
			t.Fatal(err)
		}
	}
	if k.Name != "Gadget" || k.Group != "tools.example.com" || k.Singular != "gadget" || k.StoredAs != "v1" ||
		k.StoredUnder != k.GroupResource() {
		t.Errorf("not completed: %+v", k)
	}
	if gv := k.Hub().GroupVersion.String(); gv != "tools.example.com/v1" {
		t.Errorf("the hub is %s", gv)
	}
}

// Without Check, a server would find each of these mistakes while it serves, or never.
func TestCheck_mistakes(t *testing.T) {
	run := func(context.Context, any) error { return nil }
	handler := func(any) (http.Handler, error) { return http.NotFoundHandler(), nil }
	plugin := func(any, io.Reader) (admission.Interface, error) { return nil, nil }
	valid := func(context.Context, runtime.Object) field.ErrorList { return nil }
	value := func(runtime.Object) string { return "" }
	for name, test := range map[string]struct {
		spoil func(s *Server, k *Kind)
		want  string
	}{
		"server, name":      {func(s *Server, _ *Kind) { s.Name = "Tools" }, `server: Name "Tools": `},
		"server, no groups": {func(s *Server, _ *Kind) { s.Groups = nil }, "server: no groups"},
		"controller, name":  {func(s *Server, _ *Kind) { s.Controllers = []Controller{{Run: run}} }, "controller 0: name: "},
		"controller, reserved name": {
			func(s *Server, _ *Kind) { s.Controllers = []Controller{{Name: "all", Run: run}} },
			`controller "all": name: this name selects all controllers`,
		},
		"controller, twice": {func(s *Server, _ *Kind) { s.Controllers = []Controller{{Name: "a", Run: run}, {Name: "a", Run: run}} },
			`controller "a": declared twice`},
		"controller, no function": {func(s *Server, _ *Kind) { s.Controllers = []Controller{{Name: "a"}} }, `controller "a": no Run`},
		"plugin, name": {func(s *Server, _ *Kind) { s.AdmissionPlugins = []AdmissionPlugin{{Name: "lower", New: plugin}} },
			`admission plugin "lower": name: must begin with a capital letter and have only letters and digits, such as ImagePolicy`},
		"plugin, name of the server's": {func(s *Server, _ *Kind) {
			s.AdmissionPlugins = []AdmissionPlugin{{Name: HooksPlugin,
				New: plugin}}
		},
			`admission plugin "Hooks": name: `},
		"plugin, no function": {func(s *Server, _ *Kind) { s.AdmissionPlugins = []AdmissionPlugin{{Name: "A"}} },
			`admission plugin "A": set Plugin or New`},
		"handler, no path": {func(s *Server, _ *Kind) { s.Handlers = []Handler{{New: handler}} }, "handler 0: path: "},
		"handler, unclean path": {func(s *Server, _ *Kind) { s.Handlers = []Handler{{Path: "/a//b", New: handler}} },
			`handler "/a//b": path: must be a path such as /menu, or /menu/ for all paths with this prefix`},
		"handler, path of the server's": {func(s *Server, _ *Kind) { s.Handlers = []Handler{{Path: "/apis/x", New: handler}} },
			`handler "/apis/x": path: reserved by the server, like`},
		"handler, document of another": {func(s *Server, _ *Kind) {
			document := func() *spec3.OpenAPI { return nil }
			s.Handlers = []Handler{{Path: "/a", New: handler, OpenAPI: document}, {Path: "/a/", New: handler, OpenAPI: document}}
		}, `handler "/a/": OpenAPI: handler "/a" has the document`},
		"console, title":  {func(s *Server, _ *Kind) { s.Console.Title = "a\nb" }, "console: Title: "},
		"queries, prefix": {func(s *Server, _ *Kind) { s.Query.Prefix = "/apis" }, `Server.Query: prefix "/apis" is reserved by the server, like`},

		"group, twice": {func(s *Server, _ *Kind) { s.Groups = append(s.Groups, s.Groups[0]) }, `group "tools.example.com": declared twice`},
		"group, name":  {func(s *Server, _ *Kind) { s.Groups[0].Name = "tools_" }, `group "tools_": `},
		"group, core by its name": {func(s *Server, _ *Kind) { s.Groups[0].Name = "core" },
			`group "core": this name means the group without a name`},
		"group, of the server": {func(s *Server, _ *Kind) { s.Groups[0].Name = "rbac.authorization.k8s.io" },
			`group "rbac.authorization.k8s.io": reserved: every server serves this group`},
		"group, no kinds": {func(s *Server, _ *Kind) { s.Groups[0].Kinds = nil }, `group "tools.example.com": no kinds`},
		"group, nil":      {func(s *Server, _ *Kind) { s.Groups[0].Kinds = []*Kind{nil} }, "kind 0 is nil"},
		"group, of another package": {func(s *Server, _ *Kind) { s.Groups[0].Name = "other.example.com" },
			`is generated for group "tools.example.com"`},

		"kind, resource": {func(_ *Server, k *Kind) { k.Resource = "Gadgets" }, `resource "Gadgets": `},
		"kind, twice": {func(s *Server, _ *Kind) {
			_, other := gadgets()
			s.Groups[0].Kinds = append(s.Groups[0].Kinds, other)
		}, "duplicate resource: gadgets.tools.example.com is served by kind Gadget already"},
		"kind, short name": {func(_ *Server, k *Kind) { k.ShortNames = []string{"G"} }, `name "G": `},
		"kind, hook":       {func(_ *Server, k *Kind) { k.Admissions = []AdmissionConstructor{nil} }, "Admit or Mutate: the function is nil"},
		"kind, hook of connections": {func(_ *Server, k *Kind) {
			k.ConnectAdmissions = []AdmissionConstructor{func(any) (Admission, error) { return Admission{}, nil }}
		}, "AdmitConnect: the kind has no subresource that connects"},
		"kind, TTL":   {func(_ *Server, k *Kind) { k.TTL = time.Millisecond }, "TTL must be a number of seconds, not 1ms"},
		"kind, grace": {func(_ *Server, k *Kind) { k.Grace = &Grace{} }, "GracePeriod must be a number of seconds, at least one, not 0s"},
		"kind, validation of a status that is not served": {func(_ *Server, k *Kind) {
			k.ValidateStatus = func(context.Context, runtime.Object, runtime.Object) field.ErrorList { return nil }
		}, "ValidateStatus never runs: /status is not served"},
		"column, type": {func(_ *Server, k *Kind) {
			k.Columns = []Column{{Name: "Color", Type: "text", Value: func(runtime.Object) any { return nil }}}
		}, `column "Color": type "text" must be`},
		"column, no value": {func(_ *Server, k *Kind) { k.Columns = []Column{{Name: "Color", Type: "string"}} },
			`column "Color" has no Value`},
		"selectable field, unknown": {func(_ *Server, k *Kind) { k.Selectable = []SelectableField{{Path: "spec.colour", Value: value}} },
			`selectable field "spec.colour" does not exist in version v1`},
		"selectable field, built in": {func(_ *Server, k *Kind) { k.Selectable = []SelectableField{{Path: "metadata.name", Value: value}} },
			`selectable field "metadata.name" is declared twice or built in`},
		"index of no selectable field": {func(_ *Server, k *Kind) { k.IndexFields = []string{"spec.color"} },
			`IndexFields("spec.color")`},
		"index of labels, key": {func(_ *Server, k *Kind) { k.IndexLabels = []string{"a b"} }, `IndexLabels("a b")`},
		"scale, path": {func(_ *Server, k *Kind) {
			k.Scale = &Scale{SpecReplicas: []string{"status", "replicas"}, StatusReplicas: []string{"status", "replicas"}}
		}, "Scale SpecReplicas: path .status.replicas does not begin in .spec"},
		"scale, type": {func(_ *Server, k *Kind) {
			k.Scale = &Scale{SpecReplicas: []string{"spec", "color"}, StatusReplicas: []string{"status", "replicas"}}
		}, "Scale SpecReplicas: .spec.color must be a field of type int32 or int64 in version v1"},
		"role, no verbs": {func(_ *Server, k *Kind) { k.Grants = []Grant{{Role: "painter"}} }, `Role("painter", ""): no verbs`},
		"role, subresource": {func(_ *Server, k *Kind) {
			k.Grants = []Grant{{Role: "painter", Subresource: "paint", Verbs: []string{"create"}}}
		},
			`Role("painter", "paint"): unknown subresource`},
		"stored, version": {func(_ *Server, k *Kind) { k.StoredAs = "v2" }, `StoredAs("v2"): unknown version; declared versions: v1`},
		"stored, media type": {func(_ *Server, k *Kind) { k.StoredMediaType = "text/plain" },
			`StoredMediaType("text/plain"): choose application/json`},
		"stored as protobuf without methods": {func(_ *Server, k *Kind) { k.StoredMediaType = runtime.ContentTypeProtobuf },
			"has no protobuf methods"},
		"stored, place": {func(_ *Server, k *Kind) { k.StoredUnder = schema.GroupResource{Resource: "Pods"} }, `StoredUnder("", "Pods"): `},

		"version, none served": {func(_ *Server, k *Kind) { k.Versions[0].Unserved = true }, "no version is served"},
		"version, no facts":    {func(_ *Server, k *Kind) { k.Versions[0].Facts = nil }, "no generated code: run annex generate"},
		"version, twice": {func(_ *Server, k *Kind) {
			k.Versions = append(k.Versions, gadgetVersion("v1"))
		}, "version v1: declared twice"},
		"version, no conversion": {func(_ *Server, k *Kind) { k.Versions = append(k.Versions, gadgetVersion("v2")) },
			"version v2: missing conversion: both directions"},
		"version, unserved and deprecated": {func(_ *Server, k *Kind) {
			v := gadgetVersion("v2")
			v.Unserved, v.Deprecated = true, "use v1"
			k.Versions = append(k.Versions, v)
		}, "a version cannot be both unserved and deprecated"},
		"version, validation of one that is not served": {func(_ *Server, k *Kind) {
			v := gadgetVersion("v2")
			v.Unserved, v.Validate = true, valid
			k.Versions = append(k.Versions, v)
		}, "Validate on an unserved version never runs"},
		"Go type, no object": {func(_ *Server, k *Kind) { k.Versions[0].Type = reflect.TypeFor[Bare]() },
			"does not embed metav1.ObjectMeta"},
		"Go type, not registered": {func(_ *Server, k *Kind) { k.Versions[0].Type = reflect.TypeFor[Bare]() }, "does not register Bare"},
		"Go type, another's list": {func(_ *Server, k *Kind) { k.Versions[0].ListType = reflect.TypeFor[Bare]() },
			"wrong list type: define.Bare is not the list"},

		"source, functions": {func(_ *Server, k *Kind) { k.Source = &Source{} }, "Virtual: a Source must have Get and List"},
		"source, stored": {func(_ *Server, k *Kind) { k.Source, k.StoredAs = &Source{}, "v1" },
			`StoredAs("v1"): the objects of a virtual kind are not stored`},
		"source, hook that never runs": {func(_ *Server, k *Kind) { k.Source, k.Validate = &Source{}, valid },
			"Validate never runs: the source has no Create or Update"},
		"operations, cluster-scoped": {func(_ *Server, k *Kind) { k.Operations, k.ClusterScoped = &OperationsKind{}, true },
			"operations must be namespaced: remove ClusterScoped"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, k := gadgets()
			test.spoil(s, k)
			if err := Check(s); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("want a mistake with %q, got %v", test.want, err)
			}
		})
	}
}

func TestCheck_severalMistakes_areAllTold(t *testing.T) {
	s, k := gadgets()
	s.Name, k.TTL, k.IndexFields = "", -1, []string{"spec.color"}
	err := Check(s)
	if err == nil {
		t.Fatal("no mistake is found")
	}
	for _, want := range []string{"Name", "TTL", "IndexFields"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in %v", want, err)
		}
	}
}

func TestCheck_ownVersionOfAControlPlane(t *testing.T) {
	err := Check(&Server{Name: "shop", Version: "v1.2.0", OwnVersion: true, Plane: &Plane{}})
	if err == nil || !strings.Contains(err.Error(), "OwnVersion and ControlPlane exclude each other") {
		t.Errorf("got %v", err)
	}
}

func TestCheckAggregated_groupsOfTheCluster(t *testing.T) {
	for name, mistake := range map[string]string{
		"":                          "an aggregated server cannot serve the core group, which the cluster serves",
		"apps":                      "with a domain, such as apps.example.com",
		"tools.k8s.io":              "*.k8s.io, which are reserved for Kubernetes",
		"gateway.networking.k8s.io": "*.k8s.io, which are reserved for Kubernetes", // its kind is not a custom resource
		"tools.x-k8s.io":            "",
		"tools.example.com":         "",
	} {
		s, _ := gadgets()
		s.Groups[0].Name = name
		if err := CheckAggregated(s); (err == nil) != (mistake == "") || err != nil && !strings.Contains(err.Error(), mistake) {
			t.Errorf("group %q: want %q, got %v", name, mistake, err)
		}
	}
}

func TestWith_builtInKinds(t *testing.T) {
	builtIn := func(replaceable bool) Group {
		_, k := gadgets()
		k.Replaceable = replaceable
		return Group{Name: "tools.example.com", Kinds: []*Kind{k}}
	}
	none := &Server{Name: "tools"}
	with, err := none.With(builtIn(false))
	if err != nil || len(with.Kinds()) != 1 || !with.Kinds()[0].BuiltIn || len(none.Groups) != 0 {
		t.Fatalf("added: %v, %v", with, err)
	}
	if again, err := with.With(builtIn(false)); err != nil || again != with {
		t.Errorf("added twice: %v, %v", again, err)
	}
	own, _ := gadgets()
	if err := Check(own); err != nil {
		t.Fatal(err)
	}
	if _, err := own.With(builtIn(false)); err == nil ||
		!strings.Contains(err.Error(), "every server has gadgets.tools.example.com already") {
		t.Errorf("the user's kind of the same name: %v", err)
	}
	if with, err := own.With(builtIn(true)); err != nil || with != own {
		t.Errorf("a replaceable kind: %v, %v", with, err)
	}
}

func TestGranted_defaultRoles(t *testing.T) {
	_, k := gadgets()
	k.DefaultRoles, k.Status, k.Scale = true, true, &Scale{}
	k.Grants = []Grant{{Role: "painter", Verbs: []string{"get"}}}
	verbs := map[string]string{}
	for _, g := range k.Granted() {
		verbs[g.Role+"/"+g.Subresource] = strings.Join(g.Verbs, " ")
	}
	want := map[string]string{
		"view/": "get list watch", "edit/": "create delete deletecollection patch update",
		"admin/":      "create delete deletecollection patch update",
		"view/status": "get", "view/scale": "get", "edit/scale": "patch update", "admin/scale": "patch update", "painter/": "get",
	}
	if !reflect.DeepEqual(verbs, want) {
		t.Errorf("granted are %v, want %v", verbs, want)
	}
	k.Source = &Source{} // which is only read, and not watched
	for _, g := range k.Granted() {
		if g.Role == EditRole || g.Role == ViewRole && g.Subresource == "" && strings.Join(g.Verbs, " ") != "get list" {
			t.Errorf("a kind that is only read grants %+v", g)
		}
	}
}
