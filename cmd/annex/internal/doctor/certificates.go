package doctor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

func checkName(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	name := p.api.Spec.Service.dnsName()
	if p.api.Spec.InsecureSkipTLSVerify {
		return unseen("insecureSkipTLSVerify: the API server does not verify the name")
	}
	reason, said, yes := p.objects(ctx, linkName)
	seen := p.look(ctx)
	if yes {
		f := wrong(Broken, reason, "the certificate is not valid for the name %s", name).seenIn(said)
		if len(seen.chain) > 0 {
			f = f.seenIn(fmt.Sprintf("the certificate of %s has the names %s", seen.address, orNone(namesOf(seen.chain[0]))))
		}
		return f.repairedBy(p.repairName(name)...)
	}
	if len(seen.chain) == 0 {
		if p.ask(ctx).accepts() {
			return ok("the API server accepts the certificate for %s", name)
		}
		return p.notPresented()
	}
	err := seen.chain[0].VerifyHostname(name)
	switch {
	case err == nil:
		return ok("it names %s", name)
	case p.ask(ctx).accepts():
		return p.another(ReasonNameNotInCertificate, err)
	}
	return wrong(Broken, ReasonNameNotInCertificate, "the certificate is not valid for the name %s", name).
		seenIn(fmt.Sprintf("the certificate of %s has the names %s", seen.address, orNone(namesOf(seen.chain[0])))).
		repairedBy(p.repairName(name)...)
}

// notPresented returns the finding for a certificate that could not be checked, since the API server reports only its
// first objection.
func (p *examination) notPresented() Finding {
	return unseen("the API server reports only the first problem of a certificate, and " + p.notHere())
}

// notHere returns the reason why the certificate cannot be read from this machine.
func (p *examination) notHere() string {
	switch {
	case p.leaf.address == "":
		return "the server's address is not reachable from this machine"
	case p.leaf.err == nil:
		return "the server at " + p.leaf.address + " presents another certificate to this machine"
	}
	return p.leaf.address + " cannot be reached from this machine"
}

// another returns the finding for a certificate that is invalid as seen from here, although the API server accepts the
// certificate that it gets. The two certificates may belong to two servers.
func (p *examination) another(reason string, err error) Finding {
	return wrong(
		Doubtful,
		reason,
		"the API server accepts the certificate, but %s presents another one to this machine: %v",
		p.leaf.address,
		err,
	).
		seenIn("either the address leads to another server from this machine, or the API server still uses connections from before the " +
			"certificate changed")
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 && c.Subject.CommonName != "" {
		return []string{"no name except its common name " + c.Subject.CommonName + ", which clients ignore"}
	}
	return names
}

func (p *examination) repairName(name string) []string {
	ns := p.api.Spec.Service.Namespace
	return []string{
		"# The server's certificate must have " + name + " as a DNS name (subjectAltName).",
		"# With cert-manager:",
		fmt.Sprintf(`kubectl -n %s patch certificate NAME --type=merge -p '{"spec":{"dnsNames":["%s"]}}'`, ns, name),
		"# By hand, with the certificate authority in caBundle:",
		"openssl req -newkey rsa:2048 -nodes -keyout tls.key -subj /CN=" + name + " -addext subjectAltName=DNS:" + name + " |",
		"  openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -copy_extensions copy -out tls.crt",
		fmt.Sprintf("kubectl -n %s create secret tls SECRET --cert tls.crt --key tls.key --dry-run=client -o yaml | kubectl apply -f -", ns),
	}
}

// authorities returns the certificates in caBundle, and none if it is empty.
func (p *examination) authorities() ([]*x509.Certificate, error) {
	if len(p.api.Spec.CABundle) == 0 {
		return nil, nil
	}
	var found []*x509.Certificate
	for rest := p.api.Spec.CABundle; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return found, fmt.Errorf("certificate %d: %w", len(found)+1, err)
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, errors.New("it has no PEM certificate")
	}
	return found, nil
}

func checkAuthority(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if p.api.Spec.InsecureSkipTLSVerify {
		return wrong(Doubtful, ReasonNotVerified, "insecureSkipTLSVerify: the API server trusts every server at the Service's address, "+
			"and sends it the users' requests").
			repairedBy("# With the certificate authority of the server's certificate in ca.crt:",
				patch(p.name, `{"spec":{"insecureSkipTLSVerify":false,"caBundle":"'$(base64 -w0 ca.crt)'"}}`))
	}
	bundle, err := p.authorities()
	if err != nil {
		return wrong(Broken, ReasonCABundleUnreadable, "caBundle cannot be read: %v", err).
			seenIn(p.api.writer("caBundle")).repairedBy(p.repairAuthority()...)
	}
	reason, said, yes := p.objects(ctx, linkAuthority)
	seen := p.look(ctx)
	if yes {
		return p.unknownAuthority(reason, bundle).seenIn(said, p.api.writer("caBundle"))
	}
	if len(seen.chain) == 0 {
		if p.ask(ctx).accepts() {
			return ok("the API server accepts the certificate%s", trusted(bundle))
		}
		return p.notPresented()
	}
	err = verify(seen.chain, bundle)
	switch {
	case err == nil:
		return ok("%s has signed it%s", issuer(seen.chain[0]), trusted(bundle))
	case p.ask(ctx).accepts():
		return p.another(ReasonUnknownAuthority, err)
	}
	return p.unknownAuthority(ReasonUnknownAuthority, bundle).
		seenIn(fmt.Sprintf("from this machine, at %s: %v", seen.address, err), p.api.writer("caBundle"))
}

func trusted(bundle []*x509.Certificate) string {
	if len(bundle) == 0 {
		return ", with the certificate authorities of its operating system, because the APIService has no caBundle"
	}
	return ""
}

// verify checks the chain's signatures at a time when the certificate was valid, since expiry has a check of its own.
func verify(chain, bundle []*x509.Certificate) error {
	options := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: chain[0].NotBefore.Add(time.Second)}
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	if len(bundle) > 0 {
		options.Roots = x509.NewCertPool()
	}
	for _, c := range bundle {
		options.Roots.AddCert(c)
		if c.NotBefore.After(options.CurrentTime) {
			options.CurrentTime = c.NotBefore.Add(time.Second)
		}
	}
	_, err := chain[0].Verify(options)
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return nil
	}
	return err
}

func (p *examination) unknownAuthority(reason string, bundle []*x509.Certificate) Finding {
	f := wrong(Broken, reason, "the caBundle does not have the certificate authority of the server's certificate")
	if len(bundle) == 0 {
		f.Message = "the APIService has no caBundle, and the API server's operating system does not have the certificate authority of the " +
			"server's certificate"
	}
	for _, c := range bundle {
		f = f.seenIn("caBundle has " + describe(c))
	}
	if seen := p.leaf; len(seen.chain) > 0 {
		f = f.seenIn(fmt.Sprintf("the certificate of %s is signed by %s", seen.address, issuer(seen.chain[0])))
		if slices.ContainsFunc(bundle, func(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, seen.chain[0].RawIssuer) }) {
			f = f.seenIn("the certificate authorities have the same name, but different keys: one of them was replaced")
		}
	}
	return f.repairedBy(p.repairAuthority()...)
}

func (p *examination) repairAuthority() []string {
	at := p.api.Spec.Service
	return []string{
		"# Put the certificate authority of the server's certificate into ca.crt. Take it from where",
		"# the certificate was created, not from the server itself. Often it is in a Secret:",
		fmt.Sprintf("kubectl -n %s get secret SECRET -o jsonpath='{.data.ca\\.crt}' | base64 -d > ca.crt", at.Namespace),
		patch(p.name, `{"spec":{"caBundle":"'$(base64 -w0 ca.crt)'"}}`),
		"# If a program writes caBundle, it must use the same certificate authority; with cert-manager:",
		fmt.Sprintf("kubectl annotate apiservice %s cert-manager.io/inject-ca-from=%s/CERTIFICATE", p.name, at.Namespace),
	}
}

func issuer(c *x509.Certificate) string {
	if bytes.Equal(c.RawIssuer, c.RawSubject) {
		return "itself"
	}
	return fmt.Sprintf("%q", c.Issuer)
}

func describe(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return fmt.Sprintf("%q, valid until %s, SHA-256 %X", c.Subject, day(c.NotAfter), sum[:8])
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }

// checkExpiry checks the validity of the certificate, if it can be read, and of the authorities, by the API server's
// clock.
func checkExpiry(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if p.api.Spec.InsecureSkipTLSVerify {
		return unseen("insecureSkipTLSVerify: the API server does not verify the validity period")
	}
	now := p.host.now()
	bundle, _ := p.authorities() // the check of the authority reports its errors
	dead := slices.DeleteFunc(slices.Clone(bundle), func(c *x509.Certificate) bool { return !now.After(c.NotAfter) })
	_, said, yes := p.objects(ctx, linkExpiry)
	seen := p.look(ctx)
	if len(dead) > 0 && (len(dead) == len(bundle) || yes && len(seen.chain) > 0 && valid(seen.chain[0], now)) {
		f := wrong(
			Broken,
			ReasonAuthorityExpired,
			"the certificate authority of the certificate has expired: caBundle has %d authorities, of which %d have expired",
			len(bundle),
			len(dead),
		)
		return f.seenIn("caBundle has "+describe(dead[0]), p.host.clock()).
			repairedBy(append([]string{"# Create a new certificate authority and a certificate of it, and configure the server with " +
				"it. Then:"},
				p.repairAuthority()...)...)
	}
	if yes {
		return p.expired(ctx, now, said)
	}
	if len(seen.chain) == 0 {
		return p.expiryUnseen(ctx, bundle)
	}
	leaf := seen.chain[0]
	if !valid(leaf, now) {
		if p.ask(ctx).accepts() && (verify(seen.chain, bundle) != nil || leaf.VerifyHostname(p.api.Spec.Service.dnsName()) != nil) {
			return p.another(ReasonCertificateExpired, errors.New("it is of "+span(leaf)))
		}
		return p.expired(ctx, now, fmt.Sprintf("the certificate of %s is valid %s", seen.address, span(leaf)))
	}
	if left := leaf.NotAfter.Sub(now); left < leaf.NotAfter.Sub(leaf.NotBefore)/10 {
		return wrong(
			Doubtful,
			ReasonExpiresSoon,
			"the certificate expires in %s: less than a tenth of its lifetime is left, and it was not renewed",
			left.Round(time.Second),
		).
			seenIn(fmt.Sprintf("the certificate of %s is valid %s", seen.address, span(leaf)), p.host.clock()).
			repairedBy(p.repairExpiry(ctx)...)
	}
	if len(dead) > 0 {
		return wrong(Doubtful, ReasonAuthorityExpired, "%d of %d authorities in caBundle have expired", len(dead), len(bundle)).
			seenIn("caBundle has " + describe(dead[0]))
	}
	return ok("it is valid until %s%s", day(leaf.NotAfter), until(bundle))
}

func (p *examination) expiryUnseen(ctx context.Context, bundle []*x509.Certificate) Finding {
	if !p.ask(ctx).accepts() {
		return p.notPresented()
	}
	return unseen("the API server accepts the certificate now, but doctor cannot read when it expires: " + p.notHere() + until(bundle))
}

func valid(c *x509.Certificate, now time.Time) bool {
	return !now.After(c.NotAfter) && !now.Before(c.NotBefore)
}

func span(c *x509.Certificate) string {
	return "from " + day(c.NotBefore) + " until " + day(c.NotAfter)
}

func until(bundle []*x509.Certificate) string {
	if len(bundle) == 0 {
		return ""
	}
	last := slices.MaxFunc(bundle, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return "; its certificate authority until " + day(last.NotAfter)
}

func (p *examination) expired(ctx context.Context, now time.Time, said string) Finding {
	f := wrong(Broken, ReasonCertificateExpired, "the server's certificate has expired")
	seen := p.look(ctx)
	early := strings.Contains(said, " is before ") || len(seen.chain) > 0 && now.Before(seen.chain[0].NotBefore)
	if early {
		f = wrong(Broken, ReasonCertificateNotYet, "the server's certificate is not valid yet: the clock of its issuer, or of the API "+
			"server, is wrong")
	}
	f = f.seenIn(said)
	if len(seen.chain) > 0 && !strings.Contains(said, "the certificate of "+seen.address) {
		f = f.seenIn(fmt.Sprintf("the certificate of %s is valid %s", seen.address, span(seen.chain[0])))
	}
	return f.seenIn(p.host.clock()).repairedBy(p.repairExpiry(ctx)...)
}

func (p *examination) repairExpiry(ctx context.Context) []string {
	at := p.api.Spec.Service
	name := at.dnsName()
	lines := []string{
		"# Renew the certificate, and make the server load it. With cert-manager:",
		fmt.Sprintf("cmctl -n %s renew CERTIFICATE", at.Namespace),
	}
	if p.service != nil && len(p.service.Spec.Selector) > 0 {
		for _, w := range p.workloads(ctx) {
			lines = append(
				lines,
				fmt.Sprintf("kubectl -n %s rollout restart %s   # if the server does not reload it by itself", at.Namespace, w.name),
			)
		}
	}
	return append(
		lines,
		"# By hand, with the certificate authority in caBundle:",
		"openssl req -newkey rsa:2048 -nodes -keyout tls.key -subj /CN="+name+" -addext subjectAltName=DNS:"+name+" |",
		"  openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -copy_extensions copy -out tls.crt",
		fmt.Sprintf(
			"kubectl -n %s create secret tls SECRET --cert tls.crt --key tls.key --dry-run=client -o yaml | kubectl apply -f -",
			at.Namespace,
		),
	)
}
