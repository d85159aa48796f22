package certs

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
)

// maxName is the maximum length of a common name or organization in RFC 5280 (ub-common-name, ub-organization-name).
const maxName = 64

// usersFolder is the subfolder of the issued certificates.
const usersFolder = "users"

// Users issues client certificates of the authority in a folder. Any number of processes may use a folder
// concurrently, with or without a running server.
type Users struct {
	dir   folder
	clock clock.PassiveClock
}

// OpenUsers returns the users of the authority in dir, which is Options.Dir of the server. It neither reads nor
// creates files. A nil clock means the real clock.
func OpenUsers(dir string, now clock.PassiveClock) *Users {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Users{folder(dir), now}
}

// Refusal is the error of an invalid argument. Repeating the call with the same argument cannot succeed.
type Refusal string

func (r Refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return Refusal(fmt.Sprintf(format, args...)) }

// NewUser describes a client certificate to issue.
type NewUser struct {
	// Name is the user name, and the certificate's common name. The user may have other certificates, for another
	// machine for example; all of them stay valid.
	Name string
	// Groups are the groups of the user. The server adds system:authenticated.
	Groups []string
	// Lifetime is the validity of the certificate. 0 means a year, or the rest of the authority's lifetime if that is
	// less. A lifetime beyond the authority's is rejected.
	Lifetime time.Duration
}

// Privileged reports whether the user may do everything.
func (n NewUser) Privileged() bool { return slices.Contains(n.Groups, AdminGroup) }

// Check returns a Refusal if the certificate cannot be issued.
func (n NewUser) Check() error {
	if err := checkName("user name", n.Name); err != nil {
		return err
	}
	switch {
	case n.Name == AdminUser:
		return refuse("user name %q is reserved for the administrator: choose another", n.Name)
	case strings.HasPrefix(n.Name, "system:"):
		return refuse("user name %q: names that begin with system: are reserved: choose another", n.Name)
	case n.Lifetime < 0:
		return refuse("NewUser.Lifetime %s is negative", n.Lifetime)
	}
	for i, group := range n.Groups {
		if err := checkName("NewUser.Groups", group); err != nil {
			return err
		}
		switch {
		case slices.Contains(n.Groups[:i], group):
			return refuse("NewUser.Groups %q is set twice", group)
		case strings.HasPrefix(group, "system:") && group != user.SystemPrivilegedGroup:
			return refuse("NewUser.Groups %q: the only allowed group that begins with system: is %s", group, user.SystemPrivilegedGroup)
		}
	}
	return nil
}

func checkName(what, name string) error {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case name == "":
		return refuse("%s is empty", what)
	case !utf8.ValidString(name):
		return refuse("%s %q is not UTF-8", what, name)
	case strings.ContainsFunc(name, unprintable):
		return refuse("%s %q has non-printable characters", what, name)
	case strings.TrimSpace(name) != name:
		return refuse("%s %q begins or ends with a space", what, name)
	case utf8.RuneCountInString(name) > maxName:
		return refuse("%s %q has %d characters; a certificate holds at most %d (RFC 5280)", what, name, utf8.RuneCountInString(name), maxName)
	}
	return nil
}

// Credentials are a certificate with its key, which is not stored anywhere else.
type Credentials struct {
	*pair
	authority *pair
}

// Create issues a certificate, and creates the authority if there is none yet. When Create returns, the certificate
// is listed and can be revoked.
func (u *Users) Create(n NewUser) (*Credentials, error) {
	if err := n.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(u.dir.path(usersFolder), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of users: %w", err)
	}
	c, err := u.issue(n)
	if err != nil {
		return nil, err
	}
	if err := u.dir.place(filepath.Join(usersFolder, c.Serial()+".crt"), c.certPEM, 0o644); err != nil {
		return nil, fmt.Errorf("keep a copy of the certificate: %w", err)
	}
	return c, nil
}

func (u *Users) issue(n NewUser) (*Credentials, error) {
	now := u.clock.Now()
	authority, err := u.authority(now)
	if err != nil {
		return nil, err
	}
	tmpl := userTemplate(n.Name, n.Groups)
	if n.Lifetime > 0 {
		if left := authority.cert.NotAfter.Sub(now); n.Lifetime > left {
			return nil, refuse("NewUser.Lifetime %s is longer than the remaining lifetime of the certificate authority %s, which expires "+
				"at %s: use at most %s",
				n.Lifetime, u.dir.path("ca.crt"), authority.cert.NotAfter.Format(time.RFC3339), left.Truncate(time.Hour))
		}
		tmpl.life = n.Lifetime
	}
	certPEM, keyPEM, err := newCertificate(now, tmpl, authority)
	if err != nil {
		return nil, err
	}
	issued, err := parsePair("the certificate made", "its key", certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return &Credentials{issued, authority}, nil
}

// authority returns the authority of the folder. Like a server, it creates or renews it if necessary.
func (u *Users) authority(now time.Time) (*pair, error) {
	c := Certs{files: u.dir}
	return c.ensure(now, "ca", authorityTemplate(), nil, nil)
}

// Serial returns the serial number in lower-case hexadecimal; openssl uses upper case.
func (c *Credentials) Serial() string { return serialOf(c.cert) }

// Expires returns the end of the certificate's validity.
func (c *Credentials) Expires() time.Time { return c.cert.NotAfter }

// PEM returns the certificate followed by the key.
func (c *Credentials) PEM() []byte { return slices.Concat(c.certPEM, c.keyPEM) }

// PKCS12 returns the certificate, the key and the authority, encrypted with a password as OpenSSL 3 does.
func (c *Credentials) PKCS12(password string) ([]byte, error) {
	if password == "" {
		return nil, refuse("the password is empty")
	}
	return encodePKCS12(c.pair, c.authority, password)
}

// Certificate describes an issued certificate.
type Certificate struct {
	Name    string    `json:"name"`
	Groups  []string  `json:"groups"`
	Serial  string    `json:"serial"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	// State is Valid, Expired, Revoked or Foreign.
	State string `json:"state"`
	// Revoked is the time of revocation.
	Revoked *time.Time `json:"revoked,omitempty"`

	cert *x509.Certificate
}

// States of a certificate.
const (
	Valid   = "valid"
	Expired = "expired"
	Revoked = "revoked"
	// Foreign means that a previous authority of the folder has issued the certificate.
	Foreign = "of another authority"
)

// List returns the certificates of all users and of the administrator, sorted by name and age.
func (u *Users) List() ([]Certificate, error) {
	authority, err := u.existing()
	if err != nil {
		return nil, err
	}
	revoked, err := readRevocations(u.dir, authority)
	if err != nil {
		return nil, err
	}
	return u.list(authority, revoked)
}

func (u *Users) list(authority *x509.Certificate, revoked *revocationList) ([]Certificate, error) {
	entries, err := os.ReadDir(u.dir.path(usersFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read folder of users: %w", err)
	}
	names := []string{"admin.crt"}
	for _, entry := range entries {
		name := entry.Name() // names of incomplete files begin with a dot
		if filepath.Ext(name) == ".crt" && !strings.HasPrefix(name, ".") {
			names = append(names, filepath.Join(usersFolder, name))
		}
	}
	all := []Certificate{}
	for _, name := range names {
		cert, err := u.read(name)
		if name == "admin.crt" && errors.Is(err, fs.ErrNotExist) {
			continue // no server has run yet
		}
		if err != nil {
			return nil, err
		}
		all = append(all, u.describe(cert, authority, revoked))
	}
	slices.SortFunc(all, func(a, b Certificate) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		if c := a.Issued.Compare(b.Issued); c != 0 {
			return c
		}
		return strings.Compare(a.Serial, b.Serial)
	})
	return all, nil
}

func (u *Users) describe(cert, authority *x509.Certificate, revoked *revocationList) Certificate {
	c := Certificate{
		Name:    cert.Subject.CommonName,
		Groups:  append([]string{}, cert.Subject.Organization...),
		Serial:  serialOf(cert),
		Issued:  cert.NotBefore.Add(Backdate),
		Expires: cert.NotAfter,
		State:   Valid,
		cert:    cert,
	}
	slices.Sort(c.Groups)
	at := revoked.when(cert)
	switch {
	case cert.CheckSignatureFrom(authority) != nil:
		c.State = Foreign
	case !at.IsZero():
		c.State, c.Revoked = Revoked, &at
	case u.clock.Now().After(cert.NotAfter):
		c.State = Expired
	}
	return c
}

// existing returns the authority's certificate. It does not create one.
func (u *Users) existing() (*x509.Certificate, error) {
	cert, err := u.read("ca.crt")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("no certificate authority in %s: no server has used the folder, and no user was created", u.dir)
	}
	return cert, err
}

// read reads a certificate. The error matches fs.ErrNotExist if the file is missing.
func (u *Users) read(name string) (*x509.Certificate, error) {
	data, err := u.dir.read(name)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s: no certificate in it: restore the file", u.dir.path(name))
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: restore the file", u.dir.path(name), err)
	}
	return cert, nil
}

func serialOf(cert *x509.Certificate) string { return hex.EncodeToString(cert.SerialNumber.Bytes()) }
