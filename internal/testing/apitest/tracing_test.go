package apitest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// spans records the spans that a collector has received.
type spans struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	services []string
	all      []*trace.Span
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, attribute := range of.GetResource().GetAttributes() {
			if attribute.GetKey() == "service.name" {
				s.services = append(s.services, attribute.GetValue().GetStringValue())
			}
		}
		for _, scope := range of.GetScopeSpans() {
			s.all = append(s.all, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func collect(t *testing.T) (received *spans, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received = &spans{}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, received)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return received, l.Addr().String()
}

func tracingFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tracing.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTracing_sendsSpans(t *testing.T) {
	t.Parallel()
	received, address := collect(t)
	instance, stop := run(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t),
		TracingConfigFile: tracingFile(t, fmt.Sprintf("endpoint: %s\nsamplingRatePerMillion: 1000000\n", address))})
	c := clientOf(t, instance)
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	c.post(widgetsPath, widget("w"), "Traceparent", "00-"+id+"-"+parent+"-01").want(201)
	c.stranger("secret").get(widgetsPath+"/w", "Traceparent", "00-"+id+"-"+parent+"-01").want(403)
	if err := stop(); err != nil { // it sends the remaining spans
		t.Fatal(err)
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	named := func(name string) *trace.Span {
		i := slices.IndexFunc(received.all, func(s *trace.Span) bool { return s.GetName() == name })
		if i < 0 {
			t.Fatalf("no span %s is received", name)
		}
		return received.all[i]
	}
	const path = "/apis/shop.example.com/v1/namespaces/{:namespace}/widgets"
	create := named("POST " + path)
	if fmt.Sprintf("%x", create.GetTraceId()) != id || fmt.Sprintf("%x", create.GetParentSpanId()) != parent {
		t.Errorf("the administrator's span is of the trace %x", create.GetTraceId())
	}
	if !slices.ContainsFunc(
		received.all,
		func(s *trace.Span) bool { return s.GetName() == "Create" && fmt.Sprintf("%x", s.GetTraceId()) == id },
	) {
		t.Error("what the API does is not in the trace")
	}
	// A stranger's trace is only linked to: otherwise it could not be distinguished from others.
	get := named("GET " + path + "/{:name}")
	if fmt.Sprintf("%x", get.GetTraceId()) == id || len(get.GetLinks()) != 1 {
		t.Errorf("another caller's span is of the trace %x, with the links %v", get.GetTraceId(), get.GetLinks())
	}
	if len(received.services) == 0 || received.services[0] != "shop" {
		t.Errorf("the service is %v", received.services)
	}
}

func TestTracing_unreachableCollector_delaysNoRequest(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	instance, stop := run(t, shop(), annex.Options{Storage: memory.Storage(), ShutdownTimeout: time.Second,
		TracingConfigFile: tracingFile(t, fmt.Sprintf("endpoint: %s\nsamplingRatePerMillion: 1000000\n", l.Addr()))})
	c := clientOf(t, instance)
	began := time.Now()
	for range 20 {
		c.get(widgetsPath).want(200)
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("requests took %s", took)
	}
	began = time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 15*time.Second { // the exporter alone would wait longer
		t.Errorf("the end took %s", took)
	}
}
