package v1alpha1

// SetDefaults_PizzaSpec puts on a pizza what it has if nothing is said.
func SetDefaults_PizzaSpec(spec *PizzaSpec) {
	if len(spec.Toppings) == 0 {
		spec.Toppings = []string{"salami", "mozzarella", "tomato"}
	}
}
