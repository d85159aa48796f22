package annextest_test

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

var exampleShop = annex.Server{Name: "shop", Groups: []annex.Group{{
	Name:  "shop.example.com",
	Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
}}}

// A test of a client or a controller starts a server of its own, which stops with the test.
func ExampleStart() {
	test := func(t *testing.T) {
		config := annextest.Start(t, exampleShop)
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Get(config.Host + "/apis/shop.example.com/v1")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != 200 {
			t.Error(response.Status)
		}
	}
	_ = test // go test calls it
}
