package apitest_test

import (
	"maps"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/common"
	openapi "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/api"
)

// zoo is a server whose kinds partly have protobuf, in one group: Lease has it in v1 and v1beta1, but not in
// v1alpha1; Crate does not have it at all.
func zoo(kinds ...annex.Kind) annex.Server {
	if len(kinds) == 0 {
		kinds = []annex.Kind{leases(), crates()}
	}
	return annex.Server{Name: "zoo", Groups: []annex.Group{{Name: "zoo.example.com", Kinds: kinds}}}
}

func leases() *annex.KindBuilder[coordinationv1.Lease] {
	return annex.KindOf[coordinationv1.Lease, coordinationv1.LeaseList]("leases", zooV1).
		Versions(betaLeases(), alphaLeases())
}

func betaLeases() *annex.VersionBuilder[coordinationv1beta1.Lease, coordinationv1.Lease] {
	return annex.Version(zooV1beta1,
		func(in *coordinationv1beta1.Lease, hub *coordinationv1.Lease) error {
			hub.Spec.HolderIdentity, hub.Spec.LeaseDurationSeconds = in.Spec.HolderIdentity, in.Spec.LeaseDurationSeconds
			return nil
		},
		func(hub *coordinationv1.Lease, out *coordinationv1beta1.Lease) error {
			out.Spec.HolderIdentity, out.Spec.LeaseDurationSeconds = hub.Spec.HolderIdentity, hub.Spec.LeaseDurationSeconds
			return nil
		})
}

func alphaLeases() *annex.VersionBuilder[Lease, coordinationv1.Lease] {
	return annex.Version(zooV1alpha1,
		func(in *Lease, hub *coordinationv1.Lease) error {
			hub.Spec.HolderIdentity = in.Holder
			return nil
		},
		func(hub *coordinationv1.Lease, out *Lease) error {
			out.Holder = hub.Spec.HolderIdentity
			return nil
		})
}

func crates() *annex.KindBuilder[Crate] {
	return annex.KindOf[Crate, CrateList]("crates", zooV1)
}

// Lease has no protobuf.
type Lease struct {
	metav1.TypeMeta   `        json:",inline"`
	metav1.ObjectMeta `        json:"metadata,omitempty"`
	Holder            *string `json:"holder,omitempty"`
}

// LeaseList is a list of Lease.
type LeaseList struct {
	metav1.TypeMeta `        json:",inline"`
	metav1.ListMeta `        json:"metadata,omitempty"`
	Items           []Lease `json:"items"`
}

// Crate has no protobuf.
type Crate struct {
	metav1.TypeMeta   `       json:",inline"`
	metav1.ObjectMeta `       json:"metadata,omitempty"`
	Contents          string `json:"contents,omitempty"`
}

// CrateList is a list of Crate.
type CrateList struct {
	metav1.TypeMeta `        json:",inline"`
	metav1.ListMeta `        json:"metadata,omitempty"`
	Items           []Crate `json:"items"`
}

func (in *Lease) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Holder != nil {
		out.Holder = new(*in.Holder)
	}
	return &out
}

func (in *LeaseList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = nil
	for i := range in.Items {
		out.Items = append(out.Items, *in.Items[i].DeepCopyObject().(*Lease))
	}
	return &out
}

func (in *Crate) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (in *CrateList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = nil
	for i := range in.Items {
		out.Items = append(out.Items, *in.Items[i].DeepCopyObject().(*Crate))
	}
	return &out
}

func (Lease) OpenAPIModelName() string     { return "com.example.zoo.v1alpha1.Lease" }
func (LeaseList) OpenAPIModelName() string { return "com.example.zoo.v1alpha1.LeaseList" }
func (Crate) OpenAPIModelName() string     { return "com.example.zoo.v1.Crate" }
func (CrateList) OpenAPIModelName() string { return "com.example.zoo.v1.CrateList" }

func zooV1() api.Facts {
	return zooFacts("v1", zooModel(&coordinationv1.Lease{}, &coordinationv1.LeaseList{}, map[string]openapi.Schema{
		"holderIdentity":       *openapi.StringProperty(),
		"leaseDurationSeconds": *openapi.Int32Property(),
		"leaseTransitions":     *openapi.Int32Property(),
		"acquireTime":          *openapi.StringProperty(),
		"renewTime":            *openapi.StringProperty(),
	}), zooModel(&Crate{}, &CrateList{}, nil))
}

func zooV1beta1() api.Facts {
	return zooFacts("v1beta1", zooModel(&coordinationv1beta1.Lease{}, &coordinationv1beta1.LeaseList{}, map[string]openapi.Schema{
		"holderIdentity":       *openapi.StringProperty(),
		"leaseDurationSeconds": *openapi.Int32Property(),
	}))
}

func zooV1alpha1() api.Facts { return zooFacts("v1alpha1", zooModel(&Lease{}, &LeaseList{}, nil)) }

type zooKind struct {
	object, list runtime.Object
	definitions  common.GetOpenAPIDefinitions
}

func zooFacts(version string, kinds ...zooKind) api.Facts {
	gv := schema.GroupVersion{Group: "zoo.example.com", Version: version}
	return api.Facts{
		GroupVersion: gv,
		AddToScheme: func(scheme *runtime.Scheme) error {
			for _, k := range kinds {
				scheme.AddKnownTypes(gv, k.object, k.list)
			}
			metav1.AddToGroupVersion(scheme, gv)
			return nil
		},
		OpenAPI: func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
			all := map[string]common.OpenAPIDefinition{}
			for _, k := range kinds {
				maps.Copy(all, k.definitions(ref))
			}
			return all
		},
	}
}

// zooModel describes a kind that has a spec with some fields, or just any fields.
func zooModel(object, list runtime.Object, fields map[string]openapi.Schema) zooKind {
	name := func(o any) string { return o.(interface{ OpenAPIModelName() string }).OpenAPIModelName() }
	return zooKind{object, list, func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		refer := func(name string) openapi.Schema {
			return openapi.Schema{SchemaProps: openapi.SchemaProps{Ref: ref(name)}}
		}
		properties := func(meta string) map[string]openapi.Schema {
			return map[string]openapi.Schema{"kind": *openapi.StringProperty(), "apiVersion": *openapi.StringProperty(), "metadata": refer(meta)}
		}
		one, many := properties(metav1.ObjectMeta{}.OpenAPIModelName()), properties(metav1.ListMeta{}.OpenAPIModelName())
		if fields != nil {
			one["spec"] = openapi.Schema{SchemaProps: openapi.SchemaProps{Type: []string{"object"}, Properties: fields}}
		} else {
			one["holder"], one["contents"] = *openapi.StringProperty(), *openapi.StringProperty()
		}
		item := refer(name(object))
		many["items"] = *openapi.ArrayProperty(&item)
		define := func(properties map[string]openapi.Schema, uses ...string) common.OpenAPIDefinition {
			return common.OpenAPIDefinition{
				Schema:       openapi.Schema{SchemaProps: openapi.SchemaProps{Type: []string{"object"}, Properties: properties}},
				Dependencies: uses,
			}
		}
		return map[string]common.OpenAPIDefinition{
			name(object): define(one, metav1.ObjectMeta{}.OpenAPIModelName()),
			name(list):   define(many, metav1.ListMeta{}.OpenAPIModelName(), name(object)),
		}
	}}
}
