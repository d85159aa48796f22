package convert

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	openapibuilder "k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/api"
	"github.com/annexapi/annex/internal/model/define"
)

// Gadget is a type of another project, which does not name its OpenAPI definition.
type Gadget struct {
	metav1.TypeMeta   `           json:",inline"`
	metav1.ObjectMeta `           json:"metadata,omitempty"`
	Spec              GadgetSpec `json:"spec"`
}

type GadgetSpec struct {
	Size int `json:"size"`
}

func (g *Gadget) DeepCopyObject() runtime.Object {
	return &Gadget{TypeMeta: g.TypeMeta, ObjectMeta: *g.ObjectMeta.DeepCopy(), Spec: g.Spec}
}

type GadgetList struct {
	metav1.TypeMeta `         json:",inline"`
	metav1.ListMeta `         json:"metadata"`
	Items           []Gadget `json:"items"`
}

func (l *GadgetList) DeepCopyObject() runtime.Object { return &GadgetList{TypeMeta: l.TypeMeta} }

func TestNamer_foreignType_hasKind(t *testing.T) {
	gv := schema.GroupVersion{Group: "gadgets.example.com", Version: "v1"}
	name, below := util.GetCanonicalTypeName(&Gadget{}), util.GetCanonicalTypeName(&GadgetSpec{})
	facts := func() api.Facts {
		return api.Facts{
			GroupVersion: gv,
			AddToScheme: func(s *runtime.Scheme) error {
				s.AddKnownTypes(gv, &Gadget{}, &GadgetList{})
				metav1.AddToGroupVersion(s, gv)
				return nil
			},
			OpenAPI: func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
				meta := metav1.ObjectMeta{}.OpenAPIModelName()
				return map[string]common.OpenAPIDefinition{name: {
					Schema: spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{
						"apiVersion": *spec.StringProperty(),
						"kind":       *spec.StringProperty(),
						"metadata":   {SchemaProps: spec.SchemaProps{Ref: ref(meta)}},
						"spec":       {SchemaProps: spec.SchemaProps{Ref: ref(below)}},
					}}},
					Dependencies: []string{meta, below},
				}, below: {
					Schema: spec.Schema{
						SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{"size": *spec.Int32Property()}},
					},
				}}
			},
		}
	}
	server := &define.Server{Name: "shop", Groups: []define.Group{{Name: gv.Group, Kinds: []*define.Kind{
		{
			Resource: "gadgets",
			Versions: []*define.Version{{Facts: facts, Type: reflect.TypeFor[Gadget](), ListType: reflect.TypeFor[GadgetList]()}},
		},
	}}}}
	if err := define.Check(server); err != nil {
		t.Fatal(err)
	}
	m, err := New(server)
	if err != nil {
		t.Fatal(err)
	}
	definitions := Definitions(server)
	const model = "com.github.annexapi.annex.internal.model.convert.Gadget"
	want := []any{map[string]any{"group": gv.Group, "version": "v1", "kind": "Gadget"}}

	namer := m.Namer()
	v3, err := builder3.BuildOpenAPIDefinitionsForResources(&common.OpenAPIV3Config{
		GetDefinitionName: namer.GetDefinitionName,
		// As in upstream's default configuration, with a namer of upstream.
		Definitions: definitions.V3(func(name string) spec.Ref {
			model, _ := namer.DefinitionNamer.GetDefinitionName(name)
			return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(model))
		}),
	}, name)
	if err != nil {
		t.Fatal(err)
	}
	if got := v3[model]; got == nil || !reflect.DeepEqual(got.Extensions["x-kubernetes-group-version-kind"], want) {
		t.Errorf("v3: %+v", got)
	}
	v2, err := openapibuilder.BuildOpenAPIDefinitionsForResources(
		&common.Config{GetDefinitions: definitions.V2, GetDefinitionName: namer.GetDefinitionName},
		name,
	)
	if err != nil {
		t.Fatal(err)
	}
	if got := v2.Definitions[model]; !reflect.DeepEqual(got.Extensions["x-kubernetes-group-version-kind"], want) {
		t.Errorf("v2: %+v", got)
	}
	converter, err := managedfields.NewTypeConverter(v3, false)
	if err != nil {
		t.Fatal(err)
	}
	gadget := &Gadget{Spec: GadgetSpec{Size: 3}}
	gadget.SetGroupVersionKind(gv.WithKind("Gadget"))
	if _, err := converter.ObjectToTyped(gadget); err != nil {
		t.Errorf("its fields cannot be managed: %v", err)
	}
}
