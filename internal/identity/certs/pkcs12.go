package certs

import (
	"crypto/x509"
	"fmt"

	"software.sslmate.com/src/go-pkcs12"
)

// pkcs12File is the file with the administrator's certificate and key as PKCS #12.
const pkcs12File = "client.p12"

// writePKCS12 writes the file, unless it contains the current certificates and can be decrypted with the password.
func (c *Certs) writePKCS12() error {
	if c.pkcs12Password == "" || !c.alone {
		return nil
	}
	c.mu.Lock()
	admin, authority := c.admin, c.authority
	c.mu.Unlock()
	if old, err := c.files.read(pkcs12File); err == nil {
		_, cert, chain, err := pkcs12.DecodeChain(old, c.pkcs12Password)
		if err == nil && cert.Equal(admin.cert) && len(chain) == 1 && chain[0].Equal(authority.cert) {
			return nil
		}
	}
	data, err := encodePKCS12(admin, authority, c.pkcs12Password)
	if err != nil {
		return err
	}
	if err := c.files.write(pkcs12File, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", c.files.path(pkcs12File), err)
	}
	return nil
}

// encodePKCS12 returns a certificate, its key and the authority, with the encryption that OpenSSL 3 uses.
func encodePKCS12(of, authority *pair, password string) ([]byte, error) {
	data, err := pkcs12.Modern.Encode(of.key, of.cert, []*x509.Certificate{authority.cert}, password)
	if err != nil {
		return nil, fmt.Errorf("encode PKCS #12: %w", err)
	}
	return data, nil
}
