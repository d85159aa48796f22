package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxQuantity bounds the quantity of one topping.
const MaxQuantity = 100

// Pizza is an ordered pizza.
type Pizza struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PizzaSpec   `json:"spec,omitempty"`
	Status PizzaStatus `json:"status,omitempty"`
}

// PizzaSpec is the order of a Pizza. Guests write it.
type PizzaSpec struct {
	// toppings are the pizza's toppings; the default is salami, mozzarella and tomato.
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	// +k8s:maxItems=50
	// +listType=map
	// +listMapKey=name
	Toppings []PizzaTopping `json:"toppings,omitempty"`
}

// PizzaTopping is a topping with its quantity.
type PizzaTopping struct {
	// name is the name of a Topping.
	// +k8s:required
	Name string `json:"name"`

	// quantity is the number of portions.
	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=100
	// +default=1
	Quantity int32 `json:"quantity,omitempty"`
}

// Priced is the condition that the cost in the status is current.
const Priced = "Priced"

// PizzaStatus is the price of a Pizza. Its controller writes it.
type PizzaStatus struct {
	// cost is the price of all toppings together.
	// +k8s:optional
	Cost float64 `json:"cost,omitempty"`

	// conditions has the condition Priced.
	// +k8s:optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PizzaList is a list of Pizzas.
type PizzaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pizza `json:"items"`
}
