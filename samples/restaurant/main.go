// Command restaurant serves API groups under wukong.com.
//
// +annex:domain=wukong.com
package main

import (
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/program"

	"example.com/restaurant/apiexts"
	restaurantv1alpha1 "example.com/restaurant/apis/restaurant/v1alpha1"
	restaurantv1beta1 "example.com/restaurant/apis/restaurant/v1beta1"
	"example.com/restaurant/menu"
)

func main() {
	ctrl.SetLogger(klog.Background())
	extensions := newExtensions()
	program.Main(server(extensions), addAliases, extensions.AddFlags)
}

func newExtensions() *apiexts.Extensions {
	return apiexts.New("/wukong/", map[string]apiexts.Register{
		"menu": menu.Register,
	})
}

// server is the definition of the server, for the program and its tests. annex create
// api adds a line to it for each kind.
func server(extensions *apiexts.Extensions) annex.Server {
	return annex.Server{
		Name: "restaurant",
		Groups: []annex.Group{
			{
				Name: "restaurant.wukong.com",
				Kinds: []annex.Kind{
					annex.KindOf[restaurantv1beta1.Pizza, restaurantv1beta1.PizzaList]("pizzas", restaurantv1beta1.API).
						ShortNames("pz").
						Versions(annex.Version(restaurantv1alpha1.API, restaurantv1alpha1.PizzaToHub, restaurantv1alpha1.PizzaFromHub)).
						DefaultRoles().
						Columns(pizzaColumns...).
						AdmitWith(admitPizza),
					annex.KindOf[restaurantv1beta1.Topping, restaurantv1beta1.ToppingList]("toppings", restaurantv1beta1.API).
						ClusterScoped().
						Versions(annex.Version(restaurantv1alpha1.API, restaurantv1alpha1.ToppingToHub, restaurantv1alpha1.ToppingFromHub)).
						DefaultRoles().
						Columns(annex.Column[restaurantv1beta1.Topping]{Name: "Cost", Type: "number",
							Value: func(t *restaurantv1beta1.Topping) any { return t.Spec.Cost }}).
						Validate(validateTopping),
				},
			},
		},
		Controllers: []annex.Controller{
			{Name: "pizza", Run: manage(setupPizzaController)},
			extensions.Controller("apiexts"),
		},
		Metrics:  managerMetrics,
		Handlers: []annex.Handler{extensions.Handler()},
	}
}
