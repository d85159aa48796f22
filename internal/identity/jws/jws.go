// Package jws signs and verifies JSON Web Signatures in compact form (RFC 7515), with the algorithms of service
// account tokens: RS256, ES256, ES384 and ES512. The key alone determines the algorithm. A token with another
// algorithm in its header is rejected, so that the header cannot weaken the verification.
package jws

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // for ES384 and ES512
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// MaxSize is the maximum size of a token in bytes. HTTP headers can rarely be larger.
const MaxSize = 16 << 10

// minRSA is the minimum size of an RSA key in bits (RFC 7518, section 3.3).
const minRSA = 2048

// base64url rejects unused trailing bits, so that a token has exactly one encoding.
var base64url = base64.RawURLEncoding.Strict()

// Key verifies signatures. It must not be modified.
type Key struct {
	// ID is derived from the public key as in kube-apiserver.
	ID string
	// Algorithm is the algorithm of the key, such as ES256.
	Algorithm string
	// Public is an *rsa.PublicKey or an *ecdsa.PublicKey.
	Public crypto.PublicKey

	hash crypto.Hash
}

// NewKey returns the Key of a public key. It reports an error unless the key is RSA of at least 2048 bits, or ECDSA
// on P-256, P-384 or P-521.
func NewKey(public crypto.PublicKey) (*Key, error) {
	k := &Key{Public: public}
	switch p := public.(type) {
	case *rsa.PublicKey:
		if p.N.BitLen() < minRSA {
			return nil, fmt.Errorf("an RSA key of %d bits; at least %d are required", p.N.BitLen(), minRSA)
		}
		k.Algorithm, k.hash = "RS256", crypto.SHA256
	case *ecdsa.PublicKey:
		switch p.Curve {
		case elliptic.P256():
			k.Algorithm, k.hash = "ES256", crypto.SHA256
		case elliptic.P384():
			k.Algorithm, k.hash = "ES384", crypto.SHA384
		case elliptic.P521():
			k.Algorithm, k.hash = "ES512", crypto.SHA512
		default:
			return nil, fmt.Errorf("an ECDSA key on the curve %s; use P-256, P-384 or P-521", p.Params().Name)
		}
	default:
		return nil, fmt.Errorf("a key of the type %T; use RSA or ECDSA", public)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("encode the public key: %w", err)
	}
	id := sha256.Sum256(der)
	k.ID = base64url.EncodeToString(id[:])
	return k, nil
}

// Signer signs with a private key.
type Signer struct {
	*Key
	private crypto.Signer
}

// NewSigner returns the signer of a private key. Its public key has to be valid for NewKey.
func NewSigner(private crypto.Signer) (*Signer, error) {
	key, err := NewKey(private.Public())
	if err != nil {
		return nil, err
	}
	return &Signer{key, private}, nil
}

// Private returns the private key of the signer.
func (s *Signer) Private() crypto.Signer { return s.private }

// header is the header of a token.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid,omitempty"`
	// Chain is the certificate of the key, followed by its issuers.
	Chain [][]byte `json:"x5c,omitempty"`
	// Critical lists extensions that the recipient has to support. This package supports none.
	Critical json.RawMessage `json:"crit,omitempty"`
}

// Sign returns the signed payload. The optional chain is the certificate of the key, followed by its issuers, in DER.
func (s *Signer) Sign(payload []byte, chain ...[]byte) (string, error) {
	h, err := json.Marshal(header{Algorithm: s.Algorithm, KeyID: s.ID, Chain: chain})
	if err != nil {
		return "", fmt.Errorf("encode the header: %w", err)
	}
	signed := base64url.EncodeToString(h) + "." + base64url.EncodeToString(payload)
	signature, err := s.sign(s.digest([]byte(signed)))
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	return signed + "." + base64url.EncodeToString(signature), nil
}

func (s *Signer) sign(digest []byte) ([]byte, error) {
	private, ok := s.private.(*ecdsa.PrivateKey)
	if !ok {
		return s.private.Sign(rand.Reader, digest, s.hash)
	}
	r, t, err := ecdsa.Sign(rand.Reader, private, digest)
	if err != nil {
		return nil, err
	}
	size := coordinate(&private.PublicKey)
	signature := make([]byte, 2*size)
	r.FillBytes(signature[:size])
	t.FillBytes(signature[size:])
	return signature, nil
}

// coordinate returns the size of each half of an ECDSA signature in bytes.
func coordinate(k *ecdsa.PublicKey) int { return (k.Params().BitSize + 7) / 8 }

func (k *Key) digest(signed []byte) []byte {
	h := k.hash.New()
	h.Write(signed)
	return h.Sum(nil)
}

// Token is a parsed token that has not been verified.
type Token struct {
	Algorithm, KeyID string
	Chain            [][]byte
	Payload          []byte

	signed, signature []byte
}

// Parse parses a token without verifying it. Errors do not contain the token.
func Parse(token string) (*Token, error) {
	if len(token) > MaxSize {
		return nil, fmt.Errorf("the token has %d bytes, more than %d", len(token), MaxSize)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("the token does not have three parts")
	}
	var decoded [3][]byte
	for i, part := range parts {
		var err error
		if decoded[i], err = base64url.DecodeString(part); err != nil {
			return nil, fmt.Errorf("part %d of the token is not base64url", i+1)
		}
	}
	var h header
	if err := json.Unmarshal(decoded[0], &h); err != nil {
		return nil, errors.New("the token's header is not a JSON object")
	}
	if h.Critical != nil {
		return nil, errors.New("the token has critical extensions, which are not supported")
	}
	return &Token{
		Algorithm: h.Algorithm, KeyID: h.KeyID, Chain: h.Chain, Payload: decoded[1],
		signed: []byte(token[:strings.LastIndexByte(token, '.')]), signature: decoded[2],
	}, nil
}

// Verify reports an error unless the private key of k has signed the token with the algorithm of k.
func (k *Key) Verify(t *Token) error {
	if t.Algorithm != k.Algorithm {
		return fmt.Errorf("the token's algorithm is %q, its key is for %s", t.Algorithm, k.Algorithm)
	}
	digest, ok := k.digest(t.signed), false
	switch p := k.Public.(type) {
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(p, k.hash, digest, t.signature) == nil
	case *ecdsa.PublicKey:
		size := coordinate(p)
		if len(t.signature) == 2*size {
			ok = ecdsa.Verify(p, digest, new(big.Int).SetBytes(t.signature[:size]), new(big.Int).SetBytes(t.signature[size:]))
		}
	}
	if !ok {
		return errors.New("the token's signature is wrong")
	}
	return nil
}

// webKey is a public key in the format of RFC 7517.
type webKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

// EncodeSet returns keys as a JSON Web Key Set (RFC 7517), in the given order.
func EncodeSet(keys []*Key) ([]byte, error) {
	set := struct {
		Keys []webKey `json:"keys"`
	}{[]webKey{}}
	for _, k := range keys {
		w := webKey{Use: "sig", ID: k.ID, Algorithm: k.Algorithm}
		switch p := k.Public.(type) {
		case *rsa.PublicKey:
			w.Type, w.N = "RSA", base64url.EncodeToString(p.N.Bytes())
			w.E = base64url.EncodeToString(big.NewInt(int64(p.E)).Bytes())
		case *ecdsa.PublicKey:
			point, err := p.Bytes()
			if err != nil {
				return nil, fmt.Errorf("encode the key %s: %w", k.ID, err)
			}
			point = bytes.TrimPrefix(point, []byte{4}) // the uncompressed form
			size := len(point) / 2
			w.Type, w.Curve = "EC", p.Params().Name
			w.X, w.Y = base64url.EncodeToString(point[:size]), base64url.EncodeToString(point[size:])
		}
		set.Keys = append(set.Keys, w)
	}
	return json.Marshal(set)
}
