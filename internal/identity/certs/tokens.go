package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"

	"github.com/annexapi/annex/internal/base/secretfile"
	"github.com/annexapi/annex/internal/identity/jws"
)

const (
	// tokenIssuer is the issuer in tokens that are signed with the key of a client certificate. They contain the
	// certificate, which identifies the user.
	tokenIssuer = "urn:annex:client-certificate"
	// Skew is the tolerated clock difference between signers of tokens and servers.
	Skew = time.Minute
)

type tokenClaims struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"`
	ID        string `json:"jti"`
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expires   int64  `json:"exp"`
}

// token signs a bearer token for the certificate's user. It expires with the certificate at the latest.
func (p *pair) token(now time.Time, life time.Duration) (token string, expires time.Time, err error) {
	expires = now.Add(life).Truncate(time.Second)
	if end := p.cert.NotAfter; expires.After(end) {
		expires = end
	}
	if !now.Before(expires) {
		return "", time.Time{}, refuse(
			"the certificate of %s has expired at %s",
			p.cert.Subject.CommonName,
			p.cert.NotAfter.Format(time.RFC3339),
		)
	}
	signer, err := jws.NewSigner(p.key)
	if err != nil {
		return "", time.Time{}, err
	}
	payload, err := json.Marshal(
		tokenClaims{tokenIssuer, p.cert.Subject.CommonName, uuid.NewString(), now.Unix(), now.Unix(), expires.Unix()},
	)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("encode claims: %w", err)
	}
	token, err = signer.Sign(payload, p.cert.Raw)
	return token, expires, err
}

// certificateTokens authenticates the bearer tokens that users sign with the keys of their certificates.
type certificateTokens struct {
	certs     *Certs
	audiences authenticator.Audiences
}

// Tokens returns an authenticator of bearer tokens that users sign with the key of a certificate of the server's own
// authority. Such a token authenticates its bearer as the user until it expires or the certificate is revoked. It is
// valid for audiences, the names of this server.
func (c *Certs) Tokens(audiences authenticator.Audiences) authenticator.Token {
	return certificateTokens{c, audiences}
}

// AuthenticateToken implements authenticator.Token. It has no opinion on other tokens.
func (t certificateTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	cert, _, err := t.certs.verifyToken(token)
	if cert == nil || err != nil {
		return nil, false, err
	}
	audiences := t.audiences
	if asked, ok := authenticator.AudiencesFrom(ctx); ok && len(asked) > 0 {
		if audiences = asked.Intersect(audiences); len(audiences) == 0 {
			return nil, false, fmt.Errorf("the token of %s is for this server, not for %q", cert.Subject.CommonName, asked)
		}
	}
	response, ok, err := x509request.CommonNameUserConversion.User([]*x509.Certificate{cert})
	if err != nil || !ok {
		return nil, false, err
	}
	response.Audiences = audiences
	return response, true, nil
}

// verifyToken returns the certificate whose key has signed a token, and when the token expires. It returns nil for a
// token of another kind. Errors do not contain the token.
func (c *Certs) verifyToken(token string) (*x509.Certificate, time.Time, error) {
	parsed, err := jws.Parse(token)
	if err != nil || len(parsed.Chain) == 0 {
		return nil, time.Time{}, nil
	}
	var claims tokenClaims
	if err := json.Unmarshal(parsed.Payload, &claims); err != nil || claims.Issuer != tokenIssuer {
		return nil, time.Time{}, nil
	}
	cert, err := x509.ParseCertificate(parsed.Chain[0])
	if err != nil {
		return nil, time.Time{}, errors.New("the token has no valid certificate")
	}
	c.mu.Lock()
	authority := c.authority.cert
	c.mu.Unlock()
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	now, user := c.clock.Now(), cert.Subject.CommonName
	if _, err := cert.Verify(
		x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	); err != nil {
		return nil, time.Time{}, fmt.Errorf("the token's certificate of %q: %w", user, err)
	}
	if c.Revoked(cert) {
		return nil, time.Time{}, fmt.Errorf("the token's certificate %x of %q is revoked", cert.SerialNumber, user)
	}
	key, err := jws.NewKey(cert.PublicKey)
	if err == nil {
		err = key.Verify(parsed)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("token of %q: %w", user, err)
	}
	expires := time.Unix(claims.Expires, 0)
	switch {
	case claims.Subject != user:
		return nil, time.Time{}, fmt.Errorf("token of %q: its subject is %q", user, claims.Subject)
	case !now.Before(expires):
		return nil, time.Time{}, fmt.Errorf("token of %q: it has expired at %s", user, expires.UTC().Format(time.RFC3339))
	case now.Before(time.Unix(claims.NotBefore, 0).Add(-Skew)):
		return nil, time.Time{}, fmt.Errorf("token of %q: it is not valid yet", user)
	}
	return cert, expires, nil
}

// Token signs a bearer token of the user for a server with this authority. It returns when the token expires: after
// life, or with the certificate if that is earlier.
func (c *Credentials) Token(now time.Time, life time.Duration) (token string, expires time.Time, err error) {
	return c.token(now, life)
}

// Name returns the user name.
func (c *Credentials) Name() string { return c.cert.Subject.CommonName }

// Administrator returns the administrator's credentials of the server that uses the folder. It creates nothing.
func (u *Users) Administrator() (*Credentials, error) {
	authority, err := u.existing()
	if err != nil {
		return nil, err
	}
	found, err := loadPair(u.dir.path("admin.crt"), u.dir.path("admin.key"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("no certificate of the administrator in %s: start the server once", u.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("administrator: %w", err)
	}
	return &Credentials{found, certificateOf(authority)}, nil
}

// Issued returns the credentials in a file with a certificate and its key, in the format of Credentials.PEM. An
// invalid file is a Refusal.
func (u *Users) Issued(path string) (*Credentials, error) {
	data, err := readSecret(path)
	if err != nil {
		return nil, refuse("certificate %s: %v", path, err)
	}
	found, err := parsePair(path, path, data, data)
	if err != nil {
		return nil, refuse("certificate %v", err)
	}
	authority, err := u.existing()
	if err != nil {
		return nil, err
	}
	if found.cert.CheckSignatureFrom(authority) != nil {
		return nil, refuse("certificate %s was not issued by the authority %s: the server does not accept "+
			"its tokens", path, u.dir.path("ca.crt"))
	}
	return &Credentials{found, certificateOf(authority)}, nil
}

func certificateOf(cert *x509.Certificate) *pair {
	return &pair{cert: cert, certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})}
}

func readSecret(path string) ([]byte, error) {
	file, err := os.Open(path)
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return nil, inner.Err
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil {
		err = secretfile.Check(info, "a key")
	}
	var data bytes.Buffer
	if err == nil {
		_, err = io.Copy(&data, file)
	}
	return data.Bytes(), err
}
