package v1beta1

// SetDefaults_PizzaSpec sets the default toppings.
func SetDefaults_PizzaSpec(spec *PizzaSpec) {
	if len(spec.Toppings) == 0 {
		spec.Toppings = []PizzaTopping{{Name: "salami", Quantity: 1}, {Name: "mozzarella", Quantity: 1}, {Name: "tomato", Quantity: 1}}
	}
}
