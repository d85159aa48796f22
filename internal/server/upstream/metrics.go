package upstream

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	handlersmetrics "k8s.io/apiserver/pkg/endpoints/handlers/metrics"
	apiservermetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/mux"
	storagemetrics "k8s.io/apiserver/pkg/storage/metrics"
	flowcontrolmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// installMetrics serves /metrics and /metrics/slis. /metrics has upstream's metrics, which belong to the process, the
// server's own metrics, gathered metrics and the user's. /metrics/slis has the metrics of health checks.
func installMetrics(paths *mux.PathRecorderMux, own []prometheus.Collector, gathered, users []prometheus.Gatherer) error {
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
	paths.Handle("/metrics", metricsHandler(all, users))
	slis.SLIMetrics{}.Install(paths)
	return nil
}

// ProcessMetrics serves the metrics of this process and of the libraries that it links, followed by the user's.
func ProcessMetrics(users []prometheus.Gatherer) http.Handler {
	return metricsHandler(legacyregistry.DefaultGatherer, users)
}

func metricsHandler(own prometheus.Gatherer, users []prometheus.Gatherer) http.Handler {
	handler := promhttp.HandlerFor(mergedGatherer{own, users}, promhttp.HandlerOpts{})
	return http.HandlerFunc(handler.ServeHTTP)
}

// mergedGatherer adds the metric families of other gatherers, except names that already exist. Libraries register the metrics
// of the process and of their clients, each in a registry of its own.
type mergedGatherer struct {
	own    prometheus.Gatherer
	others []prometheus.Gatherer
}

// Gather implements prometheus.Gatherer.
func (b mergedGatherer) Gather() ([]*dto.MetricFamily, error) {
	all, err := b.own.Gather()
	seen := map[string]bool{}
	for _, family := range all {
		seen[family.GetName()] = true
	}
	for _, other := range b.others {
		more, moreErr := other.Gather()
		err = errors.Join(err, moreErr)
		for _, family := range more {
			if !seen[family.GetName()] {
				seen[family.GetName()] = true
				all = append(all, family)
			}
		}
	}
	return all, err
}
