package v1alpha1

import (
	"fmt"
	"slices"

	"example.com/restaurant/apis/restaurant/v1beta1"
)

// PizzaToHub sets the spec and status of out to those of in. A topping that is listed several times is listed once,
// at its first place, with its quantity. It never fails.
func PizzaToHub(in *Pizza, out *v1beta1.Pizza) error {
	out.Status = v1beta1.PizzaStatus(in.Status)
	out.Spec.Toppings = nil
	at := make(map[string]int, len(in.Spec.Toppings))
	for _, name := range in.Spec.Toppings {
		i, named := at[name]
		if !named {
			i = len(out.Spec.Toppings)
			at[name] = i
			out.Spec.Toppings = append(out.Spec.Toppings, v1beta1.PizzaTopping{Name: name})
		}
		out.Spec.Toppings[i].Quantity++
	}
	return nil
}

// PizzaFromHub sets the spec and status of out to those of in. It lists a topping as often as its quantity. It fails
// rather than lose a value that this version cannot represent, such as a quantity of 0. It does not fail for valid
// pizzas.
func PizzaFromHub(in *v1beta1.Pizza, out *Pizza) error {
	out.Status = PizzaStatus(in.Status)
	out.Spec.Toppings = nil
	named := make(map[string]bool, len(in.Spec.Toppings))
	for _, topping := range in.Spec.Toppings {
		if topping.Quantity < 1 || topping.Quantity > v1beta1.MaxQuantity {
			return fmt.Errorf("v1alpha1 cannot hold %d times %q", topping.Quantity, topping.Name)
		}
		if named[topping.Name] {
			return fmt.Errorf("v1alpha1 cannot hold %q in two entries", topping.Name)
		}
		named[topping.Name] = true
		out.Spec.Toppings = append(out.Spec.Toppings, slices.Repeat([]string{topping.Name}, int(topping.Quantity))...)
	}
	return nil
}

// ToppingToHub sets the spec of out to that of in.
func ToppingToHub(in *Topping, out *v1beta1.Topping) error {
	out.Spec = v1beta1.ToppingSpec(in.Spec)
	return nil
}

// ToppingFromHub sets the spec of out to that of in.
func ToppingFromHub(in *v1beta1.Topping, out *Topping) error {
	out.Spec = ToppingSpec(in.Spec)
	return nil
}
