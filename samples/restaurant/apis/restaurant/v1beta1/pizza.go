package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxQuantity is how many times a pizza may have one topping.
const MaxQuantity = 100

// Pizza is a pizza that was ordered.
type Pizza struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PizzaSpec   `json:"spec,omitempty"`
	Status PizzaStatus `json:"status,omitempty"`
}

// PizzaSpec is what is on a Pizza. Guests write it.
type PizzaSpec struct {
	// toppings are what is on the pizza: salami, mozzarella and tomato if there are none.
	// +k8s:optional
	// +k8s:listType=map
	// +k8s:listMapKey=name
	// +k8s:maxItems=50
	// +listType=map
	// +listMapKey=name
	Toppings []PizzaTopping `json:"toppings,omitempty"`
}

// PizzaTopping is a topping, and how much there is of it.
type PizzaTopping struct {
	// name is that of a Topping.
	// +k8s:required
	Name string `json:"name"`

	// quantity is how many portions there are.
	// +k8s:optional
	// +k8s:minimum=1
	// +k8s:maximum=100
	// +default=1
	Quantity int32 `json:"quantity,omitempty"`
}

// Priced is the condition that the cost in the status is that of the pizza, as prices are now.
const Priced = "Priced"

// PizzaStatus is what the restaurant says of a Pizza. Its controller writes it.
type PizzaStatus struct {
	// cost is that of all toppings together.
	// +k8s:optional
	Cost float64 `json:"cost,omitempty"`

	// conditions are what is known about the pizza: Priced.
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
