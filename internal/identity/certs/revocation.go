package certs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/filelock"
	"github.com/annexapi/annex/internal/base/filewatch"
)

// revocationFile is the authority's revocation list (RFC 5280, PEM). Each write increases its number by one, and
// certificates are never removed from it.
const revocationFile = "ca.crl"

// revocationList is the parsed ca.crl.
type revocationList struct {
	*x509.RevocationList
	authority *x509.Certificate
	at        map[string]time.Time // time of revocation, by the bytes of the serial number
}

// readRevocations reads the list of an authority; it returns nil if the file does not exist.
func readRevocations(dir folder, authority *x509.Certificate) (*revocationList, error) {
	path := dir.path(revocationFile)
	data, err := dir.read(revocationFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read revocation list: %w", err)
	}
	list, err := parseRevocations(data, authority)
	if err != nil {
		return nil, fmt.Errorf("revocation list %s: %w: restore the list, or remove it if the server may accept the revoked "+
			"certificates again", path, err)
	}
	return list, nil
}

func parseRevocations(data []byte, authority *x509.Certificate) (*revocationList, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "X509 CRL" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("the file must have one PEM block of type X509 CRL")
	}
	parsed, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(parsed.RawIssuer, authority.RawSubject) || parsed.CheckSignatureFrom(authority) != nil {
		return nil, errors.New("the list was not signed by the certificate authority in the same folder")
	}
	if parsed.Number == nil {
		return nil, errors.New("it has no number")
	}
	extensions := parsed.Extensions
	list := &revocationList{parsed, authority, make(map[string]time.Time, len(parsed.RevokedCertificateEntries))}
	for _, entry := range parsed.RevokedCertificateEntries {
		extensions = slices.Concat(extensions, entry.Extensions)
		list.at[string(entry.SerialNumber.Bytes())] = entry.RevocationTime
	}
	for _, extension := range extensions {
		if extension.Critical { // it might make the list a delta, or one of several issuers
			return nil, fmt.Errorf("the list has the critical extension %s, which is not supported", extension.Id)
		}
	}
	return list, nil
}

// when returns the time at which a certificate of the authority was revoked; zero if it was not.
func (l *revocationList) when(cert *x509.Certificate) time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.at[string(cert.SerialNumber.Bytes())]
}

// add returns the encoded list with additional certificates.
func (l *revocationList) add(now time.Time, authority *pair, serials []*big.Int) ([]byte, error) {
	tmpl := x509.RevocationList{Number: big.NewInt(1), ThisUpdate: now, NextUpdate: authority.cert.NotAfter}
	if l != nil {
		tmpl.Number.Add(l.Number, tmpl.Number)
		tmpl.RevokedCertificateEntries = slices.Clone(l.RevokedCertificateEntries)
	}
	for _, serial := range serials {
		tmpl.RevokedCertificateEntries = append(
			tmpl.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now},
		)
	}
	der, err := x509.CreateRevocationList(rand.Reader, &tmpl, authority.cert, authority.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}), nil
}

// Revocation selects certificates of a user to revoke.
type Revocation struct {
	// Name is the user name.
	Name string
	// Serial is the serial number of one certificate, as List returns it. Empty selects all certificates of the user.
	// It must not be empty for the administrator, whose certificate the server itself uses.
	Serial string
}

// Revoke revokes certificates and returns them. Certificates that were revoked before keep their time of revocation.
// A running server that uses the folder rejects the certificates a moment later, other servers from their next start.
// An unknown user or certificate is a Refusal.
func (u *Users) Revoke(ctx context.Context, r Revocation) (_ []Certificate, err error) {
	if _, err := u.existing(); err != nil {
		return nil, err
	}
	lock, err := u.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	now := u.clock.Now().UTC().Truncate(time.Second)
	authority, err := u.authority(now)
	if err != nil {
		return nil, err
	}
	list, err := readRevocations(u.dir, authority.cert)
	if err != nil {
		return nil, err
	}
	chosen, err := u.choose(authority.cert, list, r)
	if err != nil {
		return nil, err
	}
	var added []*big.Int
	for i, c := range chosen {
		if c.State != Revoked {
			added = append(added, c.cert.SerialNumber)
			chosen[i].State, chosen[i].Revoked = Revoked, &now
		}
	}
	if len(added) == 0 {
		return chosen, nil
	}
	data, err := list.add(now, authority, added)
	if err != nil {
		return nil, fmt.Errorf("sign revocation list: %w", err)
	}
	if err := u.dir.write(revocationFile, data, 0o644); err != nil {
		return nil, fmt.Errorf("write revocation list: %w", err)
	}
	return chosen, nil
}

// choose returns the selected certificates.
func (u *Users) choose(authority *x509.Certificate, list *revocationList, r Revocation) ([]Certificate, error) {
	if r.Name == AdminUser && r.Serial == "" {
		return nil, refuse("%s is the administrator, for whom the server issues certificates: set Revocation.Serial to the serial number "+
			"of a certificate", r.Name)
	}
	all, err := u.list(authority, list)
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(all, func(c Certificate) bool { return c.Name != r.Name || c.State == Foreign })
	if len(chosen) == 0 {
		return nil, refuse("no certificate was issued to a user %q", r.Name)
	}
	if r.Serial == "" {
		return chosen, nil
	}
	wanted, ok := new(big.Int).SetString(strings.ReplaceAll(r.Serial, ":", ""), 16)
	if !ok {
		return nil, refuse("Revocation.Serial %q is not a serial number", r.Serial)
	}
	chosen = slices.DeleteFunc(chosen, func(c Certificate) bool { return c.cert.SerialNumber.Cmp(wanted) != 0 })
	if len(chosen) == 0 {
		return nil, refuse("Revocation.Serial %s: no certificate of %s has this serial number", r.Serial, r.Name)
	}
	return chosen, nil
}

// lock waits until no other process revokes.
func (u *Users) lock(ctx context.Context) (io.Closer, error) {
	lock, err := filelock.Lock(ctx, u.dir.path(".lock"), "revokes certificates")
	if errors.As(err, new(*fs.PathError)) {
		err = fmt.Errorf("lock certificate folder: %w", err)
	}
	return lock, err
}

// revocations is the list that a server has read. The zero value is empty.
type revocations struct {
	current  atomic.Pointer[revocationList]
	failures atomic.Uint64
}

// Revoked reports whether the server's own authority has issued and since revoked a certificate. For other
// certificates it costs one map lookup.
func (c *Certs) Revoked(cert *x509.Certificate) bool {
	list := c.revocations.current.Load()
	if list.when(cert).IsZero() {
		return false
	}
	// Another authority, even with the same name, may have issued a certificate with the same number.
	return list.authority.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}

// Revocations returns the number of revoked certificates, and the number of failed reads of the list since the start.
func (c *Certs) Revocations() (revoked int, failures uint64) {
	if list := c.revocations.current.Load(); list != nil {
		revoked = len(list.at)
	}
	return revoked, c.revocations.failures.Load()
}

// loadRevocations reads the list. If it fails, the previous list stays in force.
func (c *Certs) loadRevocations() error {
	dir, ok := c.files.(folder)
	if !ok || !c.alone {
		return nil
	}
	c.mu.Lock()
	authority := c.authority.cert
	c.mu.Unlock()
	list, err := readRevocations(dir, authority)
	old := c.revocations.current.Load()
	switch {
	case err != nil:
		return err
	case list == nil && old == nil:
		return nil
	case list == nil:
		return fmt.Errorf(
			"revocation list %s was removed: restore the list, or restart the server to accept the revoked certificates again",
			dir.path(revocationFile),
		)
	case old != nil && list.Number.Cmp(old.Number) < 0:
		return fmt.Errorf("revocation list %s: its number %s is lower than the number in force, %s: restore the newest list, or restart "+
			"the server to use this one", dir.path(revocationFile), list.Number, old.Number)
	}
	c.revocations.current.Store(list)
	return nil
}

// followRevocations reloads the list when it changes.
func (c *Certs) followRevocations(ctx context.Context) {
	dir, ok := c.files.(folder)
	if !ok || !c.alone {
		return
	}
	filewatch.Run(ctx, "Certificate revocation list", dir.path(revocationFile), func(ctx context.Context) error {
		old := c.revocations.current.Load()
		if err := c.loadRevocations(); err != nil {
			c.revocations.failures.Add(1)
			return err
		}
		if list := c.revocations.current.Load(); list != nil && (old == nil || !maps.Equal(old.at, list.at)) {
			klog.FromContext(ctx).
				Info("Certificates were revoked", "file", dir.path(revocationFile), "number", list.Number, "revoked", len(list.at))
		}
		return nil
	})
}
