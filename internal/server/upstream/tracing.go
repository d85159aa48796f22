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

// Tracing records spans of requests, and sends them to a collector in the background. A nil Tracing records none.
type Tracing struct {
	provider tracing.TracerProvider
	grace    time.Duration
}

// OpenTracing reads upstream's TracingConfiguration from a file. It returns nil for an empty name. Spans that are not
// sent within grace after the end of the server are lost. The caller must call Close.
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
		return nil, fmt.Errorf("read the host name for traces: %w", err)
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

// Close sends the remaining spans.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.grace)
	defer cancel()
	// An unreachable collector is no failure of the server: spans are best effort, and OpenTelemetry's error handler
	// reports them.
	_ = t.provider.Shutdown(ctx)
	return nil
}
