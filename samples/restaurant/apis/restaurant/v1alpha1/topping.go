package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Topping is a topping for pizzas, with its price.
type Topping struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ToppingSpec `json:"spec,omitempty"`
}

// ToppingSpec is the price of a Topping.
type ToppingSpec struct {
	// cost is the price of one portion, 0 or more.
	// +k8s:optional
	Cost float64 `json:"cost"`
}

// ToppingList is a list of Toppings.
type ToppingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Topping `json:"items"`
}
