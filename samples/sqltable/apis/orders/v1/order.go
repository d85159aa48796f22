package v1

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Order is a row of the table orders.
type Order struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   OrderSpec   `json:"spec,omitempty"`
	Status OrderStatus `json:"status,omitempty"`
}

// OrderSpec is the content of an order.
type OrderSpec struct {
	// customer is the customer's name.
	Customer string `json:"customer"`
	// quantity is the ordered quantity, at least 1.
	Quantity int64 `json:"quantity"`
}

// OrderStatus is the state of an order.
type OrderStatus struct {
	// state is New until a writer sets another.
	// +optional
	State string `json:"state,omitempty"`
}

// OrderList is a list of Orders.
type OrderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Order `json:"items"`
}

// ValidateOrder checks the constraints of the table.
func ValidateOrder(_ context.Context, o *Order) field.ErrorList {
	var errs field.ErrorList
	if o.Spec.Customer == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "customer"), "an order needs a customer"))
	}
	if o.Spec.Quantity < 1 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "quantity"), o.Spec.Quantity, "must be at least 1"))
	}
	return errs
}

// Customer sums up the orders of a customer. It is a row of the view customers.
type Customer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// orders is the number of orders.
	Orders int64 `json:"orders"`
	// quantity is the total quantity of these orders.
	Quantity int64 `json:"quantity"`
}

// CustomerList is a list of Customers.
type CustomerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Customer `json:"items"`
}
