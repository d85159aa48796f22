package upstream

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apiservermetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/mux"
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
	flowcontrolmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// installMetrics serves upstream's metrics, which are the process's, the
// server's own and those that others gather of it at /metrics, and those of health checks at /metrics/slis.
func installMetrics(paths *mux.PathRecorderMux, own []prometheus.Collector, gathered []prometheus.Gatherer) error {
	apiservermetrics.Register()
	handlersmetrics.Register()
	storagemetrics.Register()
	flowcontrolmetrics.Register()
	registry := prometheus.NewRegistry()
	for _, c := range own {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	all := append(prometheus.Gatherers{legacyregistry.DefaultGatherer, registry}, gathered...)
	handler := promhttp.HandlerFor(all, promhttp.HandlerOpts{})
	paths.Handle("/metrics", http.HandlerFunc(handler.ServeHTTP))
	slis.SLIMetrics{}.Install(paths)
	return nil
}
