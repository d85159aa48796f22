package policies

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
)

// schemas delays the requests for OpenAPI documents, by whose schemas mutating policies merge objects. Upstream
// requests the list of documents every five seconds from the start, for which each document is generated and encoded:
// a fourth of the work of a start. Here the first request waits until a policy exists, and writes that a policy could
// change wait for its response.
type schemas struct {
	need    func()
	needed  chan struct{}
	answer  func()
	answers chan struct{}
	stopped <-chan struct{}
}

func newSchemas(stopped <-chan struct{}) *schemas {
	s := &schemas{needed: make(chan struct{}), answers: make(chan struct{}), stopped: stopped}
	s.need = sync.OnceFunc(func() { close(s.needed) })
	s.answer = sync.OnceFunc(func() { close(s.answers) })
	return s
}

// OnAdd, OnUpdate and OnDelete implement cache.ResourceEventHandler for policies.
func (s *schemas) OnAdd(any, bool)   { s.need() }
func (s *schemas) OnUpdate(any, any) {}
func (s *schemas) OnDelete(any)      {}

var _ cache.ResourceEventHandler = (*schemas)(nil)

// wait waits until policies have schemas, or the context ends. It returns at once if there are no policies.
func (s *schemas) wait(ctx context.Context) {
	select {
	case <-s.needed:
	default:
		return
	}
	select {
	case <-s.answers:
	case <-ctx.Done():
	case <-s.stopped:
	}
}

// plugin is upstream's plugin, with delayed schemas.
type plugin struct {
	*mutating.Plugin
	schemas *schemas
}

var _ admission.MutationInterface = plugin{}

// Admit implements admission.MutationInterface.
func (p plugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	p.schemas.wait(ctx)
	return p.Plugin.Admit(ctx, a, o)
}

// client is a client whose requests for documents are delayed.
type client struct {
	kubernetes.Interface
	schemas *schemas
}

func (c client) Discovery() discovery.DiscoveryInterfaces {
	return discoveryClient{c.Interface.Discovery(), c.schemas}
}

type discoveryClient struct {
	discovery.DiscoveryInterfaces
	schemas *schemas
}

func (c discoveryClient) OpenAPIV3() openapi.Client {
	return documents{c.DiscoveryInterfaces.OpenAPIV3(), c.schemas}
}

type documents struct {
	openapi.Client
	schemas *schemas
}

// Paths implements openapi.Client.
func (d documents) Paths() (map[string]openapi.GroupVersion, error) {
	select {
	case <-d.schemas.needed:
	case <-d.schemas.stopped:
		return nil, nil
	}
	defer d.schemas.answer()
	return d.Client.Paths()
}
