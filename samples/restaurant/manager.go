package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/annexapi/annex"
)

// managerMetrics are the controllers' metrics, such as queue lengths and failures.
var managerMetrics = []prometheus.Gatherer{metrics.Registry}

// manage runs controllers in one manager, whose cache they share: inside the server, or in a
// process of its own with the verb controllers. Both elect a leader, and serve health checks
// and metrics, so the manager does not.
func manage(setups ...func(ctrl.Manager) error) func(context.Context, *annex.Env) error {
	return func(ctx context.Context, env *annex.Env) error {
		scheme := runtime.NewScheme()
		if err := clientgoscheme.AddToScheme(scheme); err != nil {
			return err
		}
		// The library also logs without a manager.
		ctrl.SetLogger(klog.FromContext(ctx))
		shared := true // a restarted controller, and that of another server, has the same name
		manager, err := ctrl.NewManager(env.ClientConfig(), ctrl.Options{
			Scheme:     scheme,
			Logger:     klog.FromContext(ctx),
			Metrics:    metricsserver.Options{BindAddress: "0"},
			Controller: config.Controller{SkipNameValidation: &shared},
		})
		if err != nil {
			return fmt.Errorf("manager: %w", err)
		}
		for _, setup := range setups {
			if err := setup(manager); err != nil {
				return fmt.Errorf("controller: %w", err)
			}
		}
		return manager.Start(ctx)
	}
}
