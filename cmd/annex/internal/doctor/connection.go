package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// dialling bounds a connection to the server's address from this machine, which is often unreachable.
const dialling = 2 * time.Second

// objections are fragments of API servers' errors about a server that they cannot reach or do not trust. They are
// texts of Go's libraries, in lower case, the most specific first.
var objections = []struct{ text, link, reason string }{
	{"certificate has expired or is not yet valid", linkExpiry, ReasonCertificateExpired},
	{"certificate is valid for ", linkName, ReasonNameNotInCertificate},
	{"certificate is not valid for any names", linkName, ReasonNameNotInCertificate},
	{"certificate relies on legacy common name field", linkName, ReasonNameNotInCertificate},
	{"cannot validate certificate for ", linkName, ReasonNameNotInCertificate},
	{"certificate signed by unknown authority", linkAuthority, ReasonUnknownAuthority},
	{"certificate is not standards compliant", linkAuthority, ReasonUnknownAuthority},
	{"certificate specifies an incompatible key usage", linkAuthority, ReasonUnknownAuthority},
	{"unable to load root certificates", linkAuthority, ReasonCABundleUnreadable},
	{"remote error: tls: bad certificate", linkAvailable, ReasonFrontProxyRefused},
	{"remote error: tls: certificate required", linkAvailable, ReasonFrontProxyRefused},
	{"remote error: tls: unknown certificate", linkAvailable, ReasonFrontProxyRefused},
	{"first record does not look like a tls handshake", linkConnection, ReasonNotTLS},
	{"server gave http response to https client", linkConnection, ReasonNotTLS},
	{"connection refused", linkConnection, ReasonPortClosed},
	{"no such host", linkConnection, ReasonUnreachable},
	{"server misbehaving", linkConnection, ReasonUnreachable},
	{"no route to host", linkConnection, ReasonUnreachable},
	{"network is unreachable", linkConnection, ReasonUnreachable},
	{"i/o timeout", linkConnection, ReasonUnreachable},
	{"tls handshake timeout", linkConnection, ReasonUnreachable},
	{"deadline exceeded", linkConnection, ReasonNoAnswer},
	{"timed out waiting for", linkConnection, ReasonNoAnswer},
	{"client.timeout exceeded", linkConnection, ReasonNoAnswer},
	{"connection reset by peer", linkConnection, ReasonUnreachable},
	{"eof", linkConnection, ReasonUnreachable},
}

// objection returns the link to which the API server objects, and the reason: linkAvailable for an unknown text, and
// an empty link for an empty text.
func objection(said string) (link, reason string) {
	if said == "" {
		return "", ""
	}
	said = strings.ToLower(said)
	for _, o := range objections {
		if strings.Contains(said, o.text) {
			return o.link, o.reason
		}
	}
	return linkAvailable, ""
}

// objects reports whether the API server objects to a link, and returns its text.
func (p *examination) objects(ctx context.Context, link string) (reason, said string, yes bool) {
	a := p.ask(ctx)
	found, reason := objection(a.problem)
	return reason, "the API server reports: " + a.problem, found == link
}

func checkConnection(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	reason, said, yes := p.objects(ctx, linkConnection)
	if !yes {
		if p.ask(ctx).accepts() {
			return ok("the server answers the API server")
		}
		if found, _ := objection(p.answered.problem); found == linkAvailable {
			return unseen("the API server's error does not identify the cause: " + p.answered.problem)
		}
		return ok("the API server reaches the server, but rejects its answer")
	}
	where := strings.Join(p.addresses(), ", ")
	seen := p.look(ctx)
	if reason == ReasonNoAnswer && seen.err != nil {
		reason = ReasonUnreachable // the API server's text fits both reasons
	}
	message := map[string]string{
		ReasonPortClosed:  "nothing listens at " + where,
		ReasonNotTLS:      "the server at " + where + " does not use TLS",
		ReasonUnreachable: "the API server cannot reach " + where,
		ReasonNoAnswer:    "the API server got no answer from " + where + " in time",
	}[reason]
	f := wrong(Broken, reason, "%s", message).seenIn(said)
	if seen.err != nil && seen.address != "" {
		f = f.seenIn("from this machine: " + seen.err.Error())
	} else if seen.err == nil {
		f = f.seenIn("from this machine, " + seen.address + " accepts connections: the server itself does not answer, or a component " +
			"between it and the API server does not")
	}
	return f.repairedBy(p.repairConnection(reason)...)
}

func (p *examination) repairConnection(reason string) []string {
	if p.service == nil {
		return []string{"kubectl -n " + p.api.Spec.Service.Namespace + " get service,endpointslices"}
	}
	ns, name := p.service.Namespace, p.service.Name
	if p.service.Spec.Type == corev1.ServiceTypeExternalName {
		if reason == ReasonNoAnswer {
			return []string{"# Look into the log of the server at " + strings.Join(p.addresses(), ", ") + " for the cause."}
		}
		return []string{
			fmt.Sprintf("# Run the server at %s, or change the address:", strings.Join(p.addresses(), ", ")),
			fmt.Sprintf(`kubectl -n %s patch service %s --type=merge -p '{"spec":{"externalName":"HOST"}}'`, ns, name),
			patch(p.name, `{"spec":{"service":{"port":PORT}}}`),
		}
	}
	if reason == ReasonUnreachable || reason == ReasonNoAnswer {
		return []string{
			"# The API server connects to the pods. A NetworkPolicy, a firewall between the",
			"# control plane and the nodes, or a server that hangs may prevent it.",
			fmt.Sprintf("kubectl -n %s get networkpolicies", ns),
			fmt.Sprintf("kubectl -n %s logs -l %s --tail=50", ns, p.selector()),
		}
	}
	return []string{
		"# The Service's targetPort must be the port on which the server listens (--secure-port,",
		"# on all addresses of the pod, not only on 127.0.0.1).",
		fmt.Sprintf("kubectl -n %s get service %s -o jsonpath='{.spec.ports}'", ns, name),
		fmt.Sprintf("kubectl -n %s get pods -l %s -o jsonpath='{.items[*].spec.containers[*].args}'", ns, p.selector()),
		fmt.Sprintf(
			`kubectl -n %s patch service %s --type=merge -p '{"spec":{"ports":[{"port":%d,"targetPort":PORT}]}}'`,
			ns,
			name,
			p.api.Spec.Service.Port,
		),
	}
}

// addresses returns the addresses that the API server may connect to.
func (p *examination) addresses() []string {
	if p.service == nil {
		return []string{p.api.Spec.Service.String()}
	}
	port := p.api.Spec.Service.Port
	if p.service.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{hostPort(p.service.Spec.ExternalName, port)}
	}
	var found []string
	if ip := p.service.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		found = append(found, hostPort(ip, port))
	}
	for _, target := range p.targets() {
		if !slices.Contains(found, target) {
			found = append(found, target)
		}
	}
	return found
}

func hostPort(name string, port int32) string { return net.JoinHostPort(name, fmt.Sprint(port)) }

// servingCertificate is the certificate that the server presents to this machine.
type servingCertificate struct {
	address string              // empty if there is none
	chain   []*x509.Certificate // empty if the API server sees another one
	err     error
}

// look reads the certificate at the server's address, if the address can be reached from here. It sends nothing but
// the TLS handshake. A loopback address is the API server's only if the API server is on this machine, too.
func (p *examination) look(ctx context.Context) *servingCertificate {
	if p.leaf != nil {
		return p.leaf
	}
	p.leaf = &servingCertificate{err: errors.New("no address of the server is reachable from this machine")}
	const tries = 2
	tried := 0
	for _, address := range p.addresses() {
		name, _, err := net.SplitHostPort(address)
		if p.service == nil || err != nil || tried == tries || isLoopback(name) && !p.host.isLoopback() {
			continue
		}
		tried++
		if p.leaf = show(ctx, address, p.api.Spec.Service.dnsName()); p.leaf.err == nil {
			break
		}
	}
	if len(p.leaf.chain) > 0 && !p.fits(ctx, p.leaf.chain) {
		p.leaf.chain = nil
	}
	return p.leaf
}

// fits reports whether a certificate presented here can be the one to which the API server objects. Cluster addresses
// may lead elsewhere from this machine.
func (p *examination) fits(ctx context.Context, chain []*x509.Certificate) bool {
	link, _ := objection(p.ask(ctx).problem)
	bundle, err := p.authorities()
	now := p.host.now()
	switch link {
	case linkName:
		return chain[0].VerifyHostname(p.api.Spec.Service.dnsName()) != nil
	case linkAuthority:
		return err != nil || verify(chain, bundle) != nil
	case linkExpiry:
		return slices.ContainsFunc(append(bundle, chain...), func(c *x509.Certificate) bool { return !valid(c, now) })
	case linkConnection:
		return false // the API server has not seen any
	}
	return true
}

func show(ctx context.Context, address, name string) *servingCertificate {
	ctx, cancel := context.WithTimeout(ctx, dialling)
	defer cancel()
	// The certificate is only read here, and checked by the caller: a verifying client would not return an invalid
	// chain.
	dialer := tls.Dialer{Config: &tls.Config{ServerName: name, InsecureSkipVerify: true}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return &servingCertificate{address: address, err: err}
	}
	defer connection.Close()
	return &servingCertificate{address: address, chain: connection.(*tls.Conn).ConnectionState().PeerCertificates}
}
