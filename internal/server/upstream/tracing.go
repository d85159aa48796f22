package upstream

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/apiserver/pkg/apis/apiserver"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/annexapi/annex/internal/base/configfile"
	"github.com/annexapi/annex/internal/model/define"
)

// Tracing records spans of requests, and sends them to a collector in the background. The nil
// Tracing records none.
type Tracing struct {
	provider tracing.TracerProvider
	grace    time.Duration
}

// OpenTracing reads a TracingConfiguration of upstream's; an empty name is none. What has not been
// sent when the server ends is lost after the time grace. Close must be called.
func OpenTracing(file string, s *define.Server, grace time.Duration) (*Tracing, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("Options.TracingConfigFile: %w", err)
	}
	config, err := configfile.Decode[apiserver.TracingConfiguration](data, "TracingConfiguration")
	if err == nil {
		err = configfile.Mistakes(
			data,
			tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, utilfeature.DefaultFeatureGate, nil),
		)
	}
	if err != nil {
		return nil, fmt.Errorf("Options.TracingConfigFile %s: %w", file, err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("the name of this machine, for traces: %w", err)
	}
	_, version := About(s)
	attributes := resource.WithAttributes(
		attribute.String("service.name", s.Name),
		attribute.String("service.version", version),
		attribute.String("service.instance.id", host),
	)
	provider, err := tracing.NewProvider(context.Background(), &config.TracingConfiguration, nil, []resource.Option{attributes})
	if err != nil {
		return nil, fmt.Errorf("Options.TracingConfigFile %s: %w", file, err)
	}
	return &Tracing{provider, grace}, nil
}

// Close sends what is left.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.grace)
	defer cancel()
	// A collector that is away is no failure of the server's: spans are best effort, and OpenTelemetry's
	// error handler is told of them.
	_ = t.provider.Shutdown(ctx)
	return nil
}
