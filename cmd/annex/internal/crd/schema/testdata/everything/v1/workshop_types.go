package v1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Workshop is a room with tools.
//
// - The first point. + not a marker TODO is said, too.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=workshops,singular=workroom,scope=Namespaced,shortName=ws;wsh,categories=all;craft
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:storageversion
// +kubebuilder:metadata:annotations=`example.com/bundle=v1, and "more"`,labels="example.com/release=stable"
// +kubebuilder:printcolumn:name="Phase",type="string",JSONPath=".status.phase",description=`What it does, "now"`
// +kubebuilder:printcolumn:name="Tools",type="integer",JSONPath=`.status.conditions[?(@.type=="Ready")].tools`,format="int32",priority=1
// +kubebuilder:selectablefield:JSONPath=".spec.kind"
type Workshop struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec WorkshopSpec2 `json:"spec"`

	// +optional
	Status WorkshopStatus `json:"status,omitempty"`
}

// WorkshopList is a list of objects of the kind Workshop.
// +kubebuilder:object:root=true
type WorkshopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Workshop `json:"items"`
}

// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:MaxProperties=90
// +kubebuilder:validation:XValidation:rule=`self.replicas < 10 || self.kind != "Small"`,message=`a small one has less than "ten"`,fieldPath=".replicas",reason="FieldValueForbidden"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.kind) ||\n  self.kind == oldSelf.kind",message="is for life",messageExpression=`"kind was " + oldSelf.kind`
// +structType=atomic
type WorkshopSpec2 struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern="^[a-z`\"\\\\]*$"
	Field2ndName string `json:"2nd-name"`

	// +optional
	Anything *apiextensionsv1.JSON `json:"anything,omitempty"`

	// +required
	// +listType=map
	// +listMapKey=name
	// +listMapKey=number
	Benches []WorkshopSpec2BenchesItem `json:"benches"`

	// +optional
	// +kubebuilder:validation:Maximum=9007199254740991
	Big *int64 `json:"big,omitempty"`

	// +required
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	Both intstr.IntOrString `json:"both"`

	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Data []byte `json:"data,omitempty"`

	// +optional
	// +kubebuilder:title="A day"
	// +kubebuilder:example="2026-01-01"
	// +kubebuilder:validation:Format="date"
	Day string `json:"day,omitempty"`

	// +optional
	// +kubebuilder:validation:Format="double"
	Double *float64 `json:"double,omitempty"`

	// +optional
	Empty *WorkshopSpec2Empty `json:"empty,omitempty"`

	// +optional
	Freeform *runtime.RawExtension `json:"freeform,omitempty"`

	// +optional
	Grid []WorkshopSpec2GridItem `json:"grid,omitempty"`

	// +optional
	// +kubebuilder:default={0.5,1.5}
	Half []float64 `json:"half,omitempty"`

	// +optional
	// +nullable
	// +kubebuilder:validation:Format="hostname"
	Host *string `json:"host,omitempty"`

	// +optional
	Kept *WorkshopSpec2Kept `json:"kept,omitempty"`

	// kind is how big it is.
	// +required
	// +kubebuilder:default="Small"
	// +kubebuilder:validation:Enum=Small;Large;"in between";"true";"7";""
	Kind string `json:"kind"`

	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:MaxProperties=10
	// +mapType=atomic
	Labels map[string]WorkshopSpec2LabelsValue `json:"labels,omitempty"`

	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`

	// +optional
	// +default=[0.5,1]
	Mixed []float64 `json:"mixed,omitempty"`

	// +optional
	// +default=[{"far":false,"from":"a","steps":[1,2],"to":"b, \"c\"; {d}","why":{"x":"y"}},{"from":"","steps":[],"why":null}]
	Moves []WorkshopSpec2MovesItem `json:"moves,omitempty"`

	// +optional
	// +kubebuilder:default={"ab","a,c"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +listType=set
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:Pattern="^a"
	Names []string `json:"names,omitempty"`

	// +optional
	Nested map[string]map[string][]int32 `json:"nested,omitempty"`

	// +optional
	// +kubebuilder:default={}
	None []float64 `json:"none,omitempty"`

	// +optional
	// +kubebuilder:validation:items:Format=""
	Numbers []int64 `json:"numbers,omitempty"`

	// +optional
	// +kubebuilder:default={"part":{"part":"a"}}
	Part *WorkshopSpec2Part `json:"part,omitempty"`

	// +optional
	People map[string]WorkshopSpec2PeopleValue `json:"people,omitempty"`

	// +optional
	// +kubebuilder:validation:Format=""
	Plain *int64 `json:"plain,omitempty"`

	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^\d+%$`
	Port *intstr.IntOrString `json:"port,omitempty"`

	// +optional
	// +kubebuilder:default=0.75
	// +kubebuilder:validation:Minimum=0.5
	Ratio *float64 `json:"ratio,omitempty"`

	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:ExclusiveMaximum=true
	// +kubebuilder:validation:MultipleOf=5
	Replicas *int32 `json:"replicas,omitempty"`

	// +optional
	Since *metav1.Time `json:"since,omitempty"`

	// +optional
	// +kubebuilder:validation:EmbeddedResource
	Template *runtime.RawExtension `json:"template,omitempty"`

	// +optional
	Things []apiextensionsv1.JSON `json:"things,omitempty"`

	// +optional
	// +nullable
	// +kubebuilder:default=true
	True *bool `json:"true,omitempty"`

	// +optional
	// +kubebuilder:default={{"far":false,"from":"a","steps":{1,-2},"to":`b, "c"; {d}`,"why":{"x":"y"}},{"from":"`"}}
	Turns []WorkshopSpec2TurnsItem `json:"turns,omitempty"`

	// +optional
	// +nullable
	Until *metav1.Time `json:"until,omitempty"`

	// +optional
	// +kubebuilder:externalDocs:url="https://example.com/doc",description="all about it"
	URL string `json:"url,omitempty"`
}

type WorkshopStatus struct {
	// +optional
	Conditions []WorkshopStatusConditionsItem `json:"conditions,omitempty"`

	// +optional
	Phase string `json:"phase,omitempty"`

	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// +optional
	Selector string `json:"selector,omitempty"`
}

// a bench
// +kubebuilder:validation:XValidation:rule="self.number > 0 || oldSelf.hasValue()",optionalOldSelf=true
type WorkshopSpec2BenchesItem struct {
	// +optional
	Name string `json:"Name,omitempty"`

	// +required
	Name2 string `json:"name"`

	// +required
	Number int32 `json:"number"`
}

type WorkshopSpec2Empty struct{}

// +kubebuilder:validation:MaxItems=3
// +listType=atomic
type WorkshopSpec2GridItem []bool

// +kubebuilder:pruning:PreserveUnknownFields
type WorkshopSpec2Kept struct {
	// +optional
	Known string `json:"known,omitempty"`
}

// +kubebuilder:validation:MaxLength=63
type WorkshopSpec2LabelsValue string

type WorkshopSpec2MovesItem struct {
	// +optional
	Far *bool `json:"far,omitempty"`

	// +optional
	From string `json:"from,omitempty"`

	// +optional
	// +kubebuilder:validation:items:Format=""
	Steps []int64 `json:"steps,omitempty"`

	// +optional
	To string `json:"to,omitempty"`

	// +optional
	// +nullable
	Why map[string]string `json:"why,omitempty"`
}

type WorkshopSpec2Part struct {
	// +optional
	Metadata *metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Part *WorkshopSpec2PartPart `json:"part,omitempty"`
}

// a person of the shop
type WorkshopSpec2PeopleValue struct {
	// +optional
	Name string `json:"name,omitempty"`
}

type WorkshopSpec2TurnsItem struct {
	// +optional
	Far *bool `json:"far,omitempty"`

	// +optional
	From string `json:"from,omitempty"`

	// +optional
	// +kubebuilder:validation:items:Format=""
	Steps []int64 `json:"steps,omitempty"`

	// +optional
	To string `json:"to,omitempty"`

	// +optional
	// +nullable
	Why map[string]string `json:"why,omitempty"`
}

type WorkshopStatusConditionsItem struct {
	// +optional
	// +kubebuilder:validation:Format=""
	Tools *int64 `json:"tools,omitempty"`

	// +optional
	Type string `json:"type,omitempty"`
}

type WorkshopSpec2PartPart struct {
	// +required
	Part string `json:"part"`
}
