package v1alpha1

// SetDefaults_PizzaSpec sets the default toppings.
func SetDefaults_PizzaSpec(spec *PizzaSpec) {
	if len(spec.Toppings) == 0 {
		spec.Toppings = []string{"salami", "mozzarella", "tomato"}
	}
}
