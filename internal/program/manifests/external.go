package manifests

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// httpsPort is the port of the server's Service.
const httpsPort = 443

// external is where a server outside of the cluster listens: at a DNS name, or at IP addresses.
type external struct {
	host      string
	addresses []netip.Addr
	port      int32
}

// isExternal reports whether the server runs outside of the cluster.
func (c *Config) isExternal() bool { return len(c.External) > 0 }

// readExternal parses Config.External. All entries have one port, since a Service has one target port.
func readExternal(entries []string) (external, error) {
	var e external
	for _, entry := range entries {
		host, port, err := net.SplitHostPort(entry)
		if err != nil {
			host, port = strings.Trim(entry, "[]"), strconv.Itoa(httpsPort)
		}
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return e, fmt.Errorf("Config.External %q: the port is not between 1 and 65535", entry)
		}
		if e.port != 0 && e.port != int32(number) {
			return e, fmt.Errorf("Config.External %q: all addresses must have the same port, and another one has %d", entry, e.port)
		}
		e.port = int32(number)
		address, err := netip.ParseAddr(host)
		switch {
		case err == nil && (address.IsLoopback() || address.IsUnspecified() || address.IsLinkLocalUnicast() || address.IsMulticast() ||
			address.Zone() != ""):
			return e, fmt.Errorf("Config.External %q: the cluster does not accept this address for an endpoint: use one at which its "+
				"control plane "+
				"reaches the server", entry)
		case err == nil && slices.Contains(e.addresses, address.Unmap()):
			return e, fmt.Errorf("Config.External %q: the address is given twice", entry)
		case err == nil:
			e.addresses = append(e.addresses, address.Unmap())
		case len(validation.IsDNS1123Subdomain(host)) > 0 || !strings.ContainsFunc(host, isLetter):
			return e, fmt.Errorf("Config.External %q: must be HOST or HOST:PORT, with an IP address or a DNS name", entry)
		default:
			e.host = host
		}
	}
	if e.host != "" && len(entries) > 1 {
		return e, fmt.Errorf("Config.External %s: a Service has one DNS name, or IP addresses: give one name, or addresses only",
			strings.Join(entries, ", "))
	}
	return e, nil
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' }

// checkExternal returns the mistakes in the options of a server outside of the cluster.
func (c *Config) checkExternal() []error {
	var problems []error
	if _, err := readExternal(c.External); err != nil {
		problems = append(problems, err)
	}
	for _, option := range []struct {
		name  string
		given bool
	}{
		{"Config.Image", c.Image != ""},
		{"Config.Replicas", c.Replicas != 0},
		{"Config.WithEtcd", c.WithEtcd},
		{"Config.EtcdServers", len(c.EtcdServers) > 0 && !c.WithEtcd},
		{"Config.StorageClass", c.StorageClass != ""},
		{"Config.SeparateControllers", c.SeparateControllers},
		{"Config.ServiceMonitor", c.ServiceMonitor},
	} {
		if option.given {
			problems = append(problems, fmt.Errorf("%s is for a server in the cluster, and with Config.External it runs outside: remove "+
				"one of them",
				option.name))
		}
	}
	if len(c.Args) > 0 {
		problems = append(problems, errors.New("flags for serve after -- are for a server in the cluster: with Config.External you "+
			"start the server yourself"))
	}
	if c.Certificates != SelfCertified && c.Certificates != OwnFiles {
		problems = append(problems, fmt.Errorf("Config.Certificates %q: with Config.External, choose %s, or %s for the server's "+
			"--tls-cert-file",
			c.Certificates, SelfCertified, OwnFiles))
	}
	return problems
}

// externalService returns the Service of a server outside of the cluster: an alias of a DNS name, or one without a
// selector and with the server's addresses as its endpoints.
func (c *Config) externalService() []runtime.Object {
	at, err := readExternal(c.External)
	if err != nil {
		return nil // Complete has refused it
	}
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: c.meta(c.Name)}
	if at.host != "" {
		service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: at.host}
		return []runtime.Object{service}
	}
	service.Spec.Ports = []corev1.ServicePort{{
		Name: "https", Port: httpsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(at.port),
	}}
	objects := []runtime.Object{service}
	families := map[corev1.IPFamily]bool{}
	for _, family := range []struct {
		of      corev1.IPFamily
		address discoveryv1.AddressType
		suffix  string
		is      func(netip.Addr) bool
	}{
		{corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4, "ipv4", netip.Addr.Is4},
		{corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6, "ipv6", netip.Addr.Is6},
	} {
		var endpoints []discoveryv1.Endpoint
		for _, address := range at.addresses {
			if family.is(address) {
				endpoints = append(endpoints, discoveryv1.Endpoint{
					Addresses:  []string{address.String()},
					Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
				})
			}
		}
		if len(endpoints) == 0 {
			continue
		}
		families[family.of] = true
		meta := c.meta(c.Name + "-" + family.suffix)
		meta.Labels = map[string]string{nameLabel: c.Name, discoveryv1.LabelServiceName: c.Name,
			discoveryv1.LabelManagedBy: "annex-manifests"}
		objects = append(objects, &discoveryv1.EndpointSlice{
			TypeMeta:    metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
			ObjectMeta:  meta,
			AddressType: family.address,
			Endpoints:   endpoints,
			Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(at.port), Protocol: new(corev1.ProtocolTCP)}},
		})
	}
	if families[corev1.IPv6Protocol] {
		service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		if !families[corev1.IPv4Protocol] {
			service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
			service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
		}
	}
	return objects
}

// servicePort returns the port in the APIServices. The cluster dials it at the DNS name of an ExternalName Service.
func (c *Config) servicePort() int64 {
	if at, err := readExternal(c.External); err == nil && at.host != "" {
		return int64(at.port)
	}
	return httpsPort
}

// externalNotes returns the tasks of the operator of a server outside of the cluster.
func (c *Config) externalNotes() []string {
	certificate := "--self-certify --service-name " + c.Name + " --service-namespace " + c.Namespace
	if c.Certificates == OwnFiles {
		certificate = "--tls-cert-file and --tls-private-key-file, with a certificate for " + c.serviceDNS()
	}
	return []string{fmt.Sprintf("start the server with serve --aggregated --kubeconfig FILE %s; FILE holds credentials of the service "+
		"account %s in the "+
		"namespace %s, which has the permissions that the server needs", certificate, c.Name, c.Namespace)}
}
