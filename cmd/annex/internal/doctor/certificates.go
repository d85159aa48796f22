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
		return unseen("insecureSkipTLSVerify: the API server does not look at the name")
	}
	reason, said, yes := p.objects(ctx, linkName)
	seen := p.look(ctx)
	if yes {
		f := wrong(Broken, reason, "the certificate does not name %s", name).seenIn(said)
		if len(seen.chain) > 0 {
			f = f.seenIn(fmt.Sprintf("what %s presents names %s", seen.address, orNone(namesOf(seen.chain[0]))))
		}
		return f.repairedBy(p.repairName(name)...)
	}
	if len(seen.chain) == 0 {
		if p.ask(ctx).accepts() {
			return ok("the API server accepts it as that of %s", name)
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
	return wrong(Broken, ReasonNameNotInCertificate, "the certificate does not name %s", name).
		seenIn(fmt.Sprintf("what %s presents names %s", seen.address, orNone(namesOf(seen.chain[0])))).
		repairedBy(p.repairName(name)...)
}

// notPresented returns the finding for a certificate that could not be checked, since the API server reports only its
// first objection.
func (p *examination) notPresented() Finding {
	return unseen("the API server stops at what it objects to first, and " + p.notHere())
}

// notHere returns the reason why the certificate cannot be read from this machine.
func (p *examination) notHere() string {
	switch {
	case p.leaf.address == "":
		return "the server's address does not lead there from this machine"
	case p.leaf.err == nil:
		return "what answers at " + p.leaf.address + " from this machine presents another certificate"
	}
	return p.leaf.address + " cannot be reached from this machine"
}

// another returns the finding for a certificate that is invalid as seen from here, although the API server accepts the
// certificate that it gets. The two certificates may belong to two servers.
func (p *examination) another(reason string, err error) Finding {
	return wrong(
		Doubtful,
		reason,
		"the API server accepts the certificate, but what %s presents to this machine is another: %v",
		p.leaf.address,
		err,
	).
		seenIn("either that address leads elsewhere from this machine, or connections are kept that were made before the certificate was " +
			"replaced")
}

func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 && c.Subject.CommonName != "" {
		return []string{"nothing but its common name " + c.Subject.CommonName + ", which does not count"}
	}
	return names
}

func (p *examination) repairName(name string) []string {
	ns := p.api.Spec.Service.Namespace
	return []string{
		"# The server's certificate has to name " + name + " as a DNS name (subjectAltName).",
		"# With cert-manager:",
		fmt.Sprintf(`kubectl -n %s patch certificate NAME --type=merge -p '{"spec":{"dnsNames":["%s"]}}'`, ns, name),
		"# By hand, with the authority that caBundle holds:",
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
		return nil, errors.New("there is no PEM certificate in it")
	}
	return found, nil
}

func checkAuthority(ctx context.Context, p *examination) Finding {
	if f, remote := p.remote(); !remote {
		return f
	}
	if p.api.Spec.InsecureSkipTLSVerify {
		return wrong(Doubtful, ReasonNotVerified, "insecureSkipTLSVerify: any server that answers at the Service's address is trusted, and "+
			"is sent what users send").
			repairedBy("# With the authority of the server's certificate in ca.crt:",
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
			return ok("the API server accepts it%s", trusted(bundle))
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
		return ", by the authorities of the API server's own system: there is no caBundle"
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
	f := wrong(Broken, reason, "no authority in caBundle has signed the server's certificate")
	if len(bundle) == 0 {
		f.Message = "there is no caBundle, and the API server's own system does not know who has signed the server's certificate"
	}
	for _, c := range bundle {
		f = f.seenIn("caBundle has " + describe(c))
	}
	if seen := p.leaf; len(seen.chain) > 0 {
		f = f.seenIn(fmt.Sprintf("what %s presents is signed by %s", seen.address, issuer(seen.chain[0])))
		if slices.ContainsFunc(bundle, func(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, seen.chain[0].RawIssuer) }) {
			f = f.seenIn("the name of the authority is the same, its key is not: one of the two was made anew")
		}
	}
	return f.repairedBy(p.repairAuthority()...)
}

func (p *examination) repairAuthority() []string {
	at := p.api.Spec.Service
	return []string{
		"# Put the authority that signed the server's certificate into ca.crt. Take it from where",
		"# the certificate was made, not from what the server presents. In a Secret it often is:",
		fmt.Sprintf("kubectl -n %s get secret SECRET -o jsonpath='{.data.ca\\.crt}' | base64 -d > ca.crt", at.Namespace),
		patch(p.name, `{"spec":{"caBundle":"'$(base64 -w0 ca.crt)'"}}`),
		"# If something writes caBundle, it has to know the same authority; with cert-manager:",
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
		return unseen("insecureSkipTLSVerify: the API server does not look at it")
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
			"the authority of the certificate has expired: caBundle has %d, of which %d are not valid any more",
			len(bundle),
			len(dead),
		)
		return f.seenIn("caBundle has "+describe(dead[0]), p.host.clock()).
			repairedBy(append([]string{"# Make a new authority and a certificate of it, and give the server the certificate. Then:"},
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
		return p.expired(ctx, now, fmt.Sprintf("what %s presents is valid %s", seen.address, span(leaf)))
	}
	if left := leaf.NotAfter.Sub(now); left < leaf.NotAfter.Sub(leaf.NotBefore)/10 {
		return wrong(
			Doubtful,
			ReasonExpiresSoon,
			"the certificate expires in %s: less than a tenth of its time is left, and nothing has renewed it",
			left.Round(time.Second),
		).
			seenIn(fmt.Sprintf("what %s presents is valid %s", seen.address, span(leaf)), p.host.clock()).
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
	return unseen("the API server accepts the certificate now, but how long it is valid cannot be seen: " + p.notHere() + until(bundle))
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
	return "; the authority is until " + day(last.NotAfter)
}

func (p *examination) expired(ctx context.Context, now time.Time, said string) Finding {
	f := wrong(Broken, ReasonCertificateExpired, "the server's certificate has expired")
	seen := p.look(ctx)
	early := strings.Contains(said, " is before ") || len(seen.chain) > 0 && now.Before(seen.chain[0].NotBefore)
	if early {
		f = wrong(Broken, ReasonCertificateNotYet, "the server's certificate is not valid yet: the clock of one who made it, or of the API "+
			"server, is wrong")
	}
	f = f.seenIn(said)
	if len(seen.chain) > 0 && !strings.Contains(said, seen.address+" presents") {
		f = f.seenIn(fmt.Sprintf("what %s presents is valid %s", seen.address, span(seen.chain[0])))
	}
	return f.seenIn(p.host.clock()).repairedBy(p.repairExpiry(ctx)...)
}

func (p *examination) repairExpiry(ctx context.Context) []string {
	at := p.api.Spec.Service
	name := at.dnsName()
	lines := []string{
		"# Renew the certificate, and let the server take it. With cert-manager:",
		fmt.Sprintf("cmctl -n %s renew CERTIFICATE", at.Namespace),
	}
	if p.service != nil && len(p.service.Spec.Selector) > 0 {
		for _, w := range p.workloads(ctx) {
			lines = append(
				lines,
				fmt.Sprintf("kubectl -n %s rollout restart %s   # if the server does not read it again by itself", at.Namespace, w.name),
			)
		}
	}
	return append(
		lines,
		"# By hand, with the authority that caBundle holds:",
		"openssl req -newkey rsa:2048 -nodes -keyout tls.key -subj /CN="+name+" -addext subjectAltName=DNS:"+name+" |",
		"  openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -copy_extensions copy -out tls.crt",
		fmt.Sprintf(
			"kubectl -n %s create secret tls SECRET --cert tls.crt --key tls.key --dry-run=client -o yaml | kubectl apply -f -",
			at.Namespace,
		),
	)
}
