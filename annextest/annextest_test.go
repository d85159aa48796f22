package annextest_test

import (
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

func shop() annex.Server {
	return annex.Server{
		Name: "shop",
		Groups: []annex.Group{{
			Name:  "shop.example.com",
			Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API)},
		}},
	}
}

func TestStart_concurrentServers(t *testing.T) {
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			client := discovery.NewDiscoveryClientForConfigOrDie(annextest.Start(t, shop()))
			resources, err := client.ServerResourcesForGroupVersion("shop.example.com/v1")
			if err != nil {
				t.Fatal(err)
			}
			if len(resources.APIResources) != 2 {
				t.Errorf("resources: %v", resources.APIResources)
			}
		})
	}
}

// BenchmarkStart measures the start of a server until it is ready, while all earlier servers still run.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		annextest.Start(b, shop())
	}
}
