package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pizza is an ordered pizza.
type Pizza struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PizzaSpec   `json:"spec,omitempty"`
	Status PizzaStatus `json:"status,omitempty"`
}

// PizzaSpec is the order of a Pizza. Guests write it.
type PizzaSpec struct {
	// toppings lists each topping once for each portion; the default is salami, mozzarella and tomato.
	// +k8s:optional
	// +k8s:maxItems=5000
	// +listType=atomic
	Toppings []string `json:"toppings,omitempty"`
}

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
