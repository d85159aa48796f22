// Package menu is the restaurant's API for waiters: a menu with prices, and orders in a few words instead of whole
// objects.
package menu

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/annexapi/annex"

	"example.com/restaurant/apis/restaurant/v1alpha1"
	"example.com/restaurant/apis/restaurant/v1beta1"
)

// Item is a pizza on the menu.
type Item struct {
	Name     string         `json:"name"`
	Toppings map[string]int `json:"toppings"`
	Cost     float64        `json:"cost"`
}

// Order orders a pizza. A topping may be listed several times.
type Order struct {
	Namespace string   `json:"namespace"`
	Toppings  []string `json:"toppings"`
}

// Ordered is the answer to an Order.
type Ordered struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Toppings  []string  `json:"toppings"`
	At        time.Time `json:"at"`
}

// maxBody bounds the size of an order.
const maxBody = 64 << 10

// Register adds two endpoints: GET of the menu returns the pizzas of a namespace with a known price, and POST of
// order creates a pizza with these toppings. Both act with the rights of their caller.
func Register(group *echo.Group, env *annex.Env) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return err
	}
	// The mapper is complete, so the client needs no discovery before there is a caller.
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.API().GroupVersion.WithKind("Pizza"), meta.RESTScopeNamespace)
	mapper.Add(v1beta1.API().GroupVersion.WithKind("Pizza"), meta.RESTScopeNamespace)
	pizzas, err := client.New(env.CallerConfig(), client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return err
	}
	m := menu{pizzas}
	group.GET("", m.show)
	group.POST("/order", m.order)
	return nil
}

type menu struct{ pizzas client.Client }

func (m menu) show(c *echo.Context) error {
	list := &v1beta1.PizzaList{}
	if err := m.pizzas.List(
		c.Request().Context(),
		list,
		client.InNamespace(c.QueryParamOr("namespace", metav1.NamespaceDefault)),
	); err != nil {
		return err
	}
	items := []Item{}
	for _, pizza := range list.Items {
		if !meta.IsStatusConditionTrue(pizza.Status.Conditions, v1beta1.Priced) {
			continue
		}
		item := Item{Name: pizza.Name, Toppings: map[string]int{}, Cost: pizza.Status.Cost}
		for _, t := range pizza.Spec.Toppings {
			item.Toppings[t.Name] = int(t.Quantity)
		}
		items = append(items, item)
	}
	return c.JSON(http.StatusOK, map[string]any{"items": items})
}

func (m menu) order(c *echo.Context) error {
	c.Request().Body = http.MaxBytesReader(c.Response(), c.Request().Body, maxBody)
	order := Order{Namespace: metav1.NamespaceDefault}
	if err := c.Bind(&order); err != nil {
		return apierrors.NewBadRequest(`want JSON, as in {"namespace":"default","toppings":["tomato"]}`)
	}
	pizza := &v1alpha1.Pizza{
		ObjectMeta: metav1.ObjectMeta{Namespace: order.Namespace, GenerateName: "order-"},
		Spec:       v1alpha1.PizzaSpec{Toppings: order.Toppings},
	}
	if err := m.pizzas.Create(c.Request().Context(), pizza); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, Ordered{pizza.Namespace, pizza.Name, pizza.Spec.Toppings, pizza.CreationTimestamp.Time})
}
