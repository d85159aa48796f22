package docs

import (
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/program"
)

// The examples of the README, which TestPages_showTheirExamples compares with this file.

func Example_handlers() {
	orders := annex.Handler{
		Path: "/order",
		New: func(env *annex.Env) (http.Handler, error) {
			client, err := dynamic.NewForConfig(env.CallerConfig()) // may do what the caller may
			if err != nil {
				return nil, err
			}
			return orderForm(client), nil
		},
		Resource: func(r *http.Request) *authorizationv1.ResourceAttributes {
			return &authorizationv1.ResourceAttributes{
				Verb: "order", Group: "shop.example.com", Resource: "widgets", Namespace: r.URL.Query().Get("namespace"),
			}
		},
	}
	program.Main(annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name: "shop.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
					Role("guest", "", "order", "create"), // bind it: shop.example.com:guest
			},
		}},
		Handlers: []annex.Handler{orders},
	})
}

func orderForm(dynamic.Interface) http.Handler { return http.NotFoundHandler() }
