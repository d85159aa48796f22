package annextest

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/base/dialed"
	"github.com/annexapi/annex/store/memory"
)

// Plane is a server that runs until a test is done. Its objects are in memory, and can be copied: tests that need the same
// prepared objects fork a plane that has them, and each has a server of its own. Its methods may be called concurrently.
type Plane struct {
	t       testing.TB
	server  annex.Server
	options annex.Options
	store   *memory.Store // nil if the options have another storage
	started chan struct{} // closed when config or err is set
	config  *rest.Config
	err     error // why the server is not ready, or has not stopped well
}

// StartPlane starts the server as StartWith does, with its objects in memory. The options may have neither a storage nor a
// data directory. It returns at once.
func StartPlane(t testing.TB, server annex.Server, options annex.Options) *Plane {
	t.Helper()
	return startPlane(t, server, options, &memory.Store{})
}

// RestorePlane is StartPlane with the objects of a file that WriteSnapshot has written.
func RestorePlane(t testing.TB, server annex.Server, options annex.Options, path string) *Plane {
	t.Helper()
	store, err := memory.ReadFile(path)
	if err != nil {
		t.Fatalf("restore a plane of server %s: %v", server.Name, err)
	}
	return startPlane(t, server, options, store)
}

func startPlane(t testing.TB, server annex.Server, options annex.Options, store *memory.Store) *Plane {
	t.Helper()
	if options.Storage != nil || options.DataDir != "" {
		t.Fatalf("start a plane of server %s: a plane keeps its objects in memory: Options.Storage and Options.DataDir must be empty",
			server.Name)
	}
	options.Storage = store
	p := begin(t, server, options)
	p.store = store
	return p
}

// Config returns the administrator's client configuration when the server is ready. It ends the test of StartPlane or Fork if
// the server does not start, so it must be called in that test's goroutine.
func (p *Plane) Config() *rest.Config {
	p.t.Helper()
	<-p.started
	if p.config == nil {
		p.t.Fatalf("%v", p.err)
	}
	return p.config
}

// Fork starts another server that has the objects of this one, with their revisions and history, as they are when Fork is
// called. Neither sees later writes to the other. It runs until the test t is done. Fork waits until this server is ready,
// and returns before the other one is: Config waits for that. The copy takes microseconds, whatever the number of objects.
//
// The fork has its own address and certificates, and a port of its own even if Options.Listen names one. Its webhooks are
// those of the copied objects: they call the same servers.
func (p *Plane) Fork(t testing.TB) *Plane {
	t.Helper()
	<-p.started
	if p.config == nil {
		t.Fatalf("fork a plane: %v", p.err)
	}
	options := p.options
	options.Storage, options.Listen = nil, ""
	return startPlane(t, p.server, options, p.store.Fork())
}

// WriteSnapshot writes the objects of the server to a file, for RestorePlane in later runs of tests. The file is text, and
// has the same content for the same objects; it has their Secrets, too. It replaces the file as a whole.
func (p *Plane) WriteSnapshot(path string) error {
	<-p.started
	if p.config == nil {
		return fmt.Errorf("write a snapshot: %w", p.err)
	}
	return p.store.WriteFile(path)
}

// begin starts a server that runs until the test and its subtests are done, and returns at once.
func begin(t testing.TB, server annex.Server, options annex.Options) *Plane {
	t.Helper()
	if options.Listen == "" {
		options.Listen = "127.0.0.1:0"
	}
	p := &Plane{t: t, server: server, options: options, started: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	connections, done := &dialed.Connections{}, make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx, connections)
	}()
	t.Cleanup(func() {
		cancel()
		connections.Close()
		<-done
		if p.config != nil && p.err != nil {
			t.Errorf("%v", p.err)
		}
	})
	return p
}

// run runs the server until the context ends.
func (p *Plane) run(ctx context.Context, connections *dialed.Connections) {
	instance, err := annex.New(ctx, p.server, p.options)
	if err != nil {
		p.err = fmt.Errorf("start server %s: %w", p.server.Name, err)
		close(p.started)
		return
	}
	var config *rest.Config
	err = instance.Run(ctx, func() {
		if config, p.err = instance.ClientConfig(); p.err != nil {
			p.err = fmt.Errorf("client configuration of server %s: %w", p.server.Name, p.err)
		} else {
			config.QPS, config.Dial = -1, connections.Dial
			p.config = config
		}
		close(p.started)
	})
	select {
	case <-p.started:
		if err != nil {
			p.err = fmt.Errorf("server %s: %w", p.server.Name, err)
		}
	default:
		p.err = fmt.Errorf("server %s ended before it was ready: %v", p.server.Name, err)
		close(p.started)
	}
}
