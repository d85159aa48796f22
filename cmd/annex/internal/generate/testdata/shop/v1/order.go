package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/shared"
)

// Uses of what is yet to be generated must not stop the generator.
var (
	_ runtime.Object = &Order{}
	_                = API
	_                = (*Item).DeepCopyInto
	_                = SetObjectDefaults_Order
)

// Order is a kind.
type Order struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   OrderSpec   `json:"spec,omitempty"`
	Status OrderStatus `json:"status,omitempty"`
}

// OrderSpec is a struct with fields of every shape.
type OrderSpec struct {
	// items are what is ordered.
	// +listType=map
	// +listMapKey=name
	Items []Item `json:"items,omitempty"`

	// +default="standard"
	Delivery string `json:"delivery,omitempty"`

	// +default=3
	Attempts *int32 `json:"attempts,omitempty"`

	Notes   Notes                        `json:"notes,omitempty"`
	Budget  *resource.Quantity           `json:"budget,omitempty"`
	Port    intstr.IntOrString           `json:"port,omitempty"`
	Voucher *corev1.LocalObjectReference `json:"voucher,omitempty"`
	Extra   runtime.RawExtension         `json:"extra,omitempty"`
	Due     *metav1.Time                 `json:"due,omitempty"`
	Seal    []byte                       `json:"seal,omitempty"`
	Grid    [][]int64                    `json:"grid,omitempty"`
	ByShop  map[string][]Item            `json:"byShop,omitempty"`
	Address shared.Address               `json:"address,omitempty"`
	Gift    *Gift                        `json:"gift,omitempty"`
	Size    Size                         `json:"size"`

	// +default=ref(SizeLarge)
	BoxSize Size `json:"boxSize,omitempty"`
	// +default=ref(github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/shared.DefaultCountry)
	Origin string `json:"origin,omitempty"`
	// +default={"wrapped": true}
	Bonus *Gift `json:"bonus,omitempty"`

	// The definition has no such property.
	// +k8s:openapi-gen=false
	Hidden map[int]string `json:"hidden,omitempty"`
}

// Gift holds gifts, so it refers to itself.
type Gift struct {
	Wrapped bool  `json:"wrapped,omitempty"`
	Inside  *Gift `json:"inside,omitempty"`
}

// Item is a thing in a list, with a default within.
// +k8s:defaulter-gen=true
type Item struct {
	Name string `json:"name"`
	// +default=1
	// +k8s:validation:minimum=1
	// +k8s:validation:maximum=100
	Quantity int32 `json:"quantity,omitempty"`
}

// Notes is a map with a name.
type Notes map[string]string

// Size is an enumeration.
// +enum
type Size string

const (
	// SizeSmall fits.
	SizeSmall Size = "Small"
	// SizeLarge does not.
	SizeLarge Size = "Large"
)

// OrderStatus has the usual conditions.
type OrderStatus struct {
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// OrderList is its list.
type OrderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Order `json:"items"`
}

// Refund is an object that is neither a kind nor a list: the body of a
// subresource.
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
type Refund struct {
	metav1.TypeMeta `json:",inline"`

	Amount int64 `json:"amount"`
}

// Receipt has a type and nothing that makes it an object.
type Receipt struct {
	metav1.TypeMeta `json:",inline"`

	// +default=true
	Paid *bool `json:"paid,omitempty"`
}

// Watcher is no API type.
// +k8s:deepcopy-gen=false
type Watcher struct {
	OnOrder func(*Order)
	events  chan Order
}

func (w *Watcher) next() Order { return <-w.events }

// SetDefaults_OrderSpec runs first of its three.
func SetDefaults_OrderSpec(s *OrderSpec) {
	if s.Delivery == "" && s.Voucher != nil {
		s.Delivery = "voucher"
	}
}

// SetDefaults_OrderSpec_Size is one of two more.
func SetDefaults_OrderSpec_Size(s *OrderSpec) {
	if s.Size == "" {
		s.Size = SizeSmall
	}
}

// SetDefaults_OrderSpec_Notes is the other.
func SetDefaults_OrderSpec_Notes(s *OrderSpec) {
	if s.Notes == nil {
		s.Notes = Notes{"size": string(s.Size)}
	}
}
