// Package server defines the API server for the tables, for its program and its tests.
package server

import (
	"database/sql"

	"github.com/annexapi/annex"

	v1 "example.com/sqltable/apis/orders/v1"
	"example.com/sqltable/table"
)

// New returns the definition of the server.
func New(db *sql.DB) annex.Server {
	return annex.Server{
		Name: "sqltable",
		Groups: []annex.Group{{
			Name: "orders.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1.Order, v1.OrderList]("orders", v1.API).
					Virtual(table.Orders(db)).
					Validate(v1.ValidateOrder).
					SelectableField("spec.customer", func(o *v1.Order) string { return o.Spec.Customer }).
					Columns(
						annex.Column[v1.Order]{Name: "Customer", Value: func(o *v1.Order) any { return o.Spec.Customer }},
						annex.Column[v1.Order]{Name: "Quantity", Type: "integer", Value: func(o *v1.Order) any { return o.Spec.Quantity }},
						annex.Column[v1.Order]{Name: "State", Value: func(o *v1.Order) any { return o.Status.State }},
					),
				annex.KindOf[v1.Customer, v1.CustomerList]("customers", v1.API).
					ClusterScoped().
					Virtual(table.Customers(db)).
					Columns(
						annex.Column[v1.Customer]{Name: "Orders", Type: "integer", Value: func(c *v1.Customer) any { return c.Orders }},
						annex.Column[v1.Customer]{Name: "Quantity", Type: "integer", Value: func(c *v1.Customer) any { return c.Quantity }},
					),
			},
		}},
	}
}
