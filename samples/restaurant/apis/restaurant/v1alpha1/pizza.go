package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pizza is a pizza that was ordered.
type Pizza struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PizzaSpec   `json:"spec,omitempty"`
	Status PizzaStatus `json:"status,omitempty"`
}

// PizzaSpec is what is on a Pizza. Guests write it.
type PizzaSpec struct {
	// toppings are what is on the pizza, each as often as there are portions of it: salami,
	// mozzarella and tomato if there are none.
	// +k8s:optional
	// +k8s:maxItems=5000
	// +listType=atomic
	Toppings []string `json:"toppings,omitempty"`
}

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
