package workloads

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"
	pods "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	portrepair "k8s.io/kubernetes/pkg/registry/core/service/portallocator/controller"
	storage "k8s.io/kubernetes/pkg/registry/core/service/storage"
	netutils "k8s.io/utils/net"
)

// services allocate the addresses and node ports of Services. Addresses are objects of kind IPAddress. Node ports are in
// memory, and found again in the Services at the start.
type services struct {
	ranges    []*net.IPNet
	ports     utilnet.PortRange
	allocated *allocator.AllocationBitmap
	client    kubernetes.Interface
	addresses map[api.IPFamily]*ipallocator.MetaAllocator
	// recovered is closed when the node ports of existing Services are allocated.
	recovered chan struct{}
}

// addServices adds Services and their subresources.
func addServices(
	options Options,
	client kubernetes.Interface,
	shared informers.SharedInformerFactory,
	pod *pods.REST,
	transport http.RoundTripper,
	from generic.RESTOptionsGetter,
	to map[string]rest.Storage,
) (*services, error) {
	ranges, err := netutils.ParseCIDRs(options.ServiceIPRanges)
	if err != nil {
		return nil, fmt.Errorf("ServiceIPRanges: %w", err)
	}
	ports, err := utilnet.ParsePortRange(options.ServiceNodePorts)
	if err != nil {
		return nil, fmt.Errorf("ServiceNodePorts: %w", err)
	}
	s := &services{
		ranges: ranges, ports: *ports, client: client, addresses: map[api.IPFamily]*ipallocator.MetaAllocator{}, recovered: make(chan struct{}),
	}
	cidrs, ips := shared.Networking().V1().ServiceCIDRs(), shared.Networking().V1().IPAddresses()
	allocators := map[api.IPFamily]ipallocator.Interface{}
	for _, r := range ranges {
		addresses, err := ipallocator.NewMetaAllocator(client.NetworkingV1(), cidrs, ips, netutils.IsIPv6CIDR(r), nil)
		if err != nil {
			return nil, fmt.Errorf("addresses of services: %w", err)
		}
		s.addresses[addresses.IPFamily()], allocators[addresses.IPFamily()] = addresses, addresses
	}
	nodePorts, err := portallocator.New(s.ports, func(size int, spec string, offset int) (allocator.Interface, error) {
		s.allocated = allocator.NewAllocationMapWithOffset(size, spec, offset)
		return s.allocated, nil
	})
	if err != nil {
		return nil, fmt.Errorf("node ports of services: %w", err)
	}
	slices, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("endpoints of services: %w", err)
	}
	family := api.IPv4Protocol
	if netutils.IsIPv6CIDR(ranges[0]) {
		family = api.IPv6Protocol
	}
	service, status, proxied, err := storage.NewREST(from, family, allocators, nodePorts, slices, pod, transport)
	if err != nil {
		return nil, fmt.Errorf("services: %w", err)
	}
	to["services"], to["services/status"], to["services/proxy"] = allocating{service, s}, status, proxied
	return s, nil
}

// allocating are Services whose endpoint also ends the allocators, which have goroutines.
type allocating struct {
	*storage.REST
	services *services
}

// Destroy implements rest.Storage.
func (a allocating) Destroy() {
	for _, addresses := range a.services.addresses {
		addresses.Destroy()
	}
	a.REST.Destroy()
}

// repairPeriod is that of a kube-apiserver.
const repairPeriod = 3 * time.Minute

// keepPorts allocates the node ports of existing Services, closes s.recovered, and repairs the allocation from time to time
// until the context ends.
func (s *services) keepPorts(ctx context.Context) {
	stop := make(chan struct{})
	context.AfterFunc(ctx, func() { close(stop) })
	repair := portrepair.NewRepair(repairPeriod, s.client.CoreV1(), s.client.EventsV1(), s.ports, s)
	repair.RunUntil(func() { close(s.recovered) }, stop)
}

// waitForPorts waits until the node ports of existing Services are allocated.
func (s *services) waitForPorts(ctx context.Context) error {
	select {
	case <-s.recovered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get implements rangeallocation.RangeRegistry.
func (s *services) Get() (*api.RangeAllocation, error) {
	all := &api.RangeAllocation{}
	all.Range, all.Data = s.allocated.Snapshot()
	return all, nil
}

// CreateOrUpdate implements rangeallocation.RangeRegistry.
func (s *services) CreateOrUpdate(all *api.RangeAllocation) error {
	return s.allocated.Restore(all.Range, all.Data)
}

// hasAddresses returns nil when the allocators know their ranges, which they follow by informers.
func (s *services) hasAddresses() error {
	for family, addresses := range s.addresses {
		if addresses.Used()+addresses.Free() == 0 {
			return fmt.Errorf("no range of %s is known yet", family)
		}
	}
	return nil
}

// createRange creates the ServiceCIDR from which addresses are allocated.
func (s *services) createRange(ctx context.Context) error {
	ranges := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		ranges[i] = r.String()
	}
	all := s.client.NetworkingV1().ServiceCIDRs()
	made, err := all.Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: ranges},
	}, metav1.CreateOptions{})
	if err != nil {
		return existing(err)
	}
	made.Status.Conditions = []metav1.Condition{{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
		LastTransitionTime: metav1.Now(),
	}}
	_, err = all.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}
