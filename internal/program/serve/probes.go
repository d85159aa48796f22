package serve

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/annexapi/annex/internal/server/upstream"
)

// Probes are the plain HTTP addresses where a controller process serves probes and metrics without authentication.
// Each is an IP address and a port; an empty address disables it. They may be equal.
type Probes struct {
	// Health is the address of /healthz, /livez and /readyz, whose responses name no object.
	Health string
	// Metrics is the address of /metrics.
	Metrics string
}

// Check returns the first mistake.
func (p Probes) Check() error {
	for _, address := range []struct{ field, value string }{{"Probes.Health", p.Health}, {"Probes.Metrics", p.Metrics}} {
		if address.value == "" {
			continue
		}
		host, port, err := net.SplitHostPort(address.value)
		if err == nil && host != "" && net.ParseIP(host) == nil {
			err = errors.New("the host is not an IP address")
		}
		if _, lookup := net.LookupPort("tcp", port); err == nil && lookup != nil {
			err = lookup
		}
		if err != nil {
			return fmt.Errorf("%s %q: must be an IP address and a port, as in 127.0.0.1:8081: %w", address.field, address.value, err)
		}
	}
	return nil
}

// probing serves the probes.
type probing struct {
	state   atomic.Pointer[string]
	servers []probeServer
	running sync.WaitGroup
}

type probeServer struct {
	*http.Server
	listener net.Listener
}

// open opens the listeners.
func (p Probes) open(metrics []prometheus.Gatherer) (*probing, error) {
	opened := &probing{}
	paths := map[string]*http.ServeMux{}
	at := func(address string) *http.ServeMux {
		if paths[address] == nil {
			paths[address] = http.NewServeMux()
		}
		return paths[address]
	}
	if p.Health != "" {
		mux := at(p.Health)
		mux.HandleFunc("GET /healthz", ok)
		mux.HandleFunc("GET /livez", ok)
		mux.HandleFunc("GET /readyz", opened.ready)
	}
	if p.Metrics != "" {
		at(p.Metrics).Handle("GET /metrics", upstream.ProcessMetrics(metrics))
	}
	for address, mux := range paths {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			opened.close()
			return nil, fmt.Errorf("probes: %w", err)
		}
		opened.servers = append(opened.servers, probeServer{&http.Server{
			Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		}, listener})
	}
	return opened, nil
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }

func (p *probing) ready(w http.ResponseWriter, _ *http.Request) {
	state := p.state.Load()
	if state == nil {
		http.Error(w, "begins", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte(*state))
}

// A ready process responds to probes with state from now on.
func (p *probing) say(state string) { p.state.Store(&state) }

func (p *probing) serve() {
	for _, server := range p.servers {
		p.running.Go(func() { _ = server.Serve(server.listener) }) // close ends it
	}
}

func (p *probing) close() {
	for _, server := range p.servers {
		_ = server.Close()
		_ = server.listener.Close()
	}
	p.running.Wait()
}
