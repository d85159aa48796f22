package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/annexapi/annex"

	restaurantv1beta1 "example.com/restaurant/apis/restaurant/v1beta1"
)

// byTopping is the index of pizzas by the names of their toppings.
const byTopping = "spec.toppings.name"

// pizzaController keeps the price of each Pizza current, also when prices of toppings change. Its client reads the
// manager's cache.
type pizzaController struct {
	client.Client
	events events.EventRecorder
}

// setupPizzaController adds the controller to a manager.
func setupPizzaController(manager ctrl.Manager) error {
	if err := restaurantv1beta1.AddToScheme(manager.GetScheme()); err != nil {
		return err
	}
	names := func(obj client.Object) []string {
		var names []string
		for _, topping := range obj.(*restaurantv1beta1.Pizza).Spec.Toppings {
			names = append(names, topping.Name)
		}
		return names
	}
	if err := manager.GetFieldIndexer().IndexField(context.Background(), &restaurantv1beta1.Pizza{}, byTopping, names); err != nil {
		return err
	}
	c := &pizzaController{manager.GetClient(), manager.GetEventRecorder("pizza-controller")}
	return ctrl.NewControllerManagedBy(manager).
		Named("pizza").
		For(&restaurantv1beta1.Pizza{}).
		Watches(&restaurantv1beta1.Topping{}, handler.EnqueueRequestsFromMapFunc(c.pizzasWith)).
		Complete(c)
}

// pizzasWith returns the pizzas whose price depends on a topping.
func (c *pizzaController) pizzasWith(ctx context.Context, topping client.Object) []reconcile.Request {
	pizzas := &restaurantv1beta1.PizzaList{}
	if err := c.List(ctx, pizzas, client.MatchingFields{byTopping: topping.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Pizzas are not priced anew", "topping", topping.GetName())
		return nil
	}
	var all []reconcile.Request
	for i := range pizzas.Items {
		all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pizzas.Items[i])})
	}
	return all
}

// Reconcile prices one Pizza.
func (c *pizzaController) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pizza := &restaurantv1beta1.Pizza{}
	if err := c.Get(ctx, request.NamespacedName, pizza); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if pizza.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	cost, missing, err := c.cost(ctx, pizza)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := pizza.Status.Cost
	condition := metav1.Condition{
		Type: restaurantv1beta1.Priced, Status: metav1.ConditionTrue, Reason: "Priced",
		Message: fmt.Sprintf("it costs %g", cost), ObservedGeneration: pizza.Generation,
	}
	if len(missing) > 0 {
		// The last price is the best known one.
		cost, condition.Status, condition.Reason = before, metav1.ConditionFalse, "ToppingMissing"
		condition.Message = "there is no topping " + strings.Join(missing, ", ")
	}
	changed := meta.SetStatusCondition(&pizza.Status.Conditions, condition)
	if !changed && cost == before {
		return ctrl.Result{}, nil
	}
	pizza.Status.Cost = cost
	err = c.Status().Update(ctx, pizza)
	if apierrors.IsConflict(err) {
		return ctrl.Result{}, nil // the newer object causes another call
	}
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	kind := corev1.EventTypeNormal
	if len(missing) > 0 {
		kind = corev1.EventTypeWarning
	}
	c.events.Eventf(pizza, nil, kind, condition.Reason, "Price", "%s", condition.Message)
	return ctrl.Result{}, nil
}

// cost returns the price of all toppings together, or the names of missing toppings.
func (c *pizzaController) cost(ctx context.Context, pizza *restaurantv1beta1.Pizza) (cost float64, missing []string, err error) {
	for _, wanted := range pizza.Spec.Toppings {
		topping := &restaurantv1beta1.Topping{}
		err := c.Get(ctx, client.ObjectKey{Name: wanted.Name}, topping)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, wanted.Name)
		case err != nil:
			return 0, nil, err
		}
		cost += topping.Spec.Cost * float64(wanted.Quantity)
	}
	return cost, missing, nil
}

// pizzaColumns are the columns of kubectl get.
var pizzaColumns = []annex.Column[restaurantv1beta1.Pizza]{
	{Name: "Toppings", Value: func(p *restaurantv1beta1.Pizza) any {
		var all []string
		for _, t := range p.Spec.Toppings {
			if t.Quantity == 1 {
				all = append(all, t.Name)
			} else {
				all = append(all, fmt.Sprintf("%dx %s", t.Quantity, t.Name))
			}
		}
		return strings.Join(all, ", ")
	}},
	{Name: "Cost", Type: "number", Value: func(p *restaurantv1beta1.Pizza) any { return p.Status.Cost }},
	{Name: "Priced", Value: func(p *restaurantv1beta1.Pizza) any {
		if c := meta.FindStatusCondition(p.Status.Conditions, restaurantv1beta1.Priced); c != nil {
			return string(c.Status)
		}
		return nil
	}},
}
