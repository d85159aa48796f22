// Package jws signs and verifies JSON Web Signatures in the compact form (RFC 7515), with the
// algorithms that tokens of service accounts have: RS256, ES256, ES384 and ES512. The
// algorithm follows from the key and from nothing else: a token that names another one is
// refused, so that what it says cannot weaken how it is verified.
package jws

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // of ES384 and ES512
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// MaxSize is how many bytes a token has at most. Headers of HTTP rarely may have more.
const MaxSize = 16 << 10

// minRSA is how many bits an RSA key has at least (RFC 7518, section 3.3).
const minRSA = 2048

// base64url refuses bits that say nothing, so that a token has one spelling.
var base64url = base64.RawURLEncoding.Strict()

// Key verifies signatures. It must not be changed.
type Key struct {
	// ID is the key's, made of the key as kube-apiserver does.
	ID string
	// Algorithm is the one that the key is for, such as ES256.
	Algorithm string
	// Public is an *rsa.PublicKey or an *ecdsa.PublicKey.
	Public crypto.PublicKey

	hash crypto.Hash
}

// NewKey returns the key for a public key: RSA of at least 2048 bits, or ECDSA on P-256,
// P-384 or P-521.
func NewKey(public crypto.PublicKey) (*Key, error) {
	k := &Key{Public: public}
	switch p := public.(type) {
	case *rsa.PublicKey:
		if p.N.BitLen() < minRSA {
			return nil, fmt.Errorf("an RSA key of %d bits; %d are needed at least", p.N.BitLen(), minRSA)
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

// NewSigner returns the signer for a private key, whose public key is one for NewKey.
func NewSigner(private crypto.Signer) (*Signer, error) {
	key, err := NewKey(private.Public())
	if err != nil {
		return nil, err
	}
	return &Signer{key, private}, nil
}

// Private is the key that the signer signs with.
func (s *Signer) Private() crypto.Signer { return s.private }

// header is what stands before the payload.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid,omitempty"`
	// Chain is the certificate of the key, and those that verify it.
	Chain [][]byte `json:"x5c,omitempty"`
	// Critical are extensions that have to be understood; none is.
	Critical json.RawMessage `json:"crit,omitempty"`
}

// Sign returns the signed payload. The chain, if there is one, is the certificate of the key
// and those that verify it, in DER.
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

// coordinate is how many bytes each half of a signature has.
func coordinate(k *ecdsa.PublicKey) int { return (k.Params().BitSize + 7) / 8 }

func (k *Key) digest(signed []byte) []byte {
	h := k.hash.New()
	h.Write(signed)
	return h.Sum(nil)
}

// Token is a token that has been taken apart, and not been verified.
type Token struct {
	Algorithm, KeyID string
	Chain            [][]byte
	Payload          []byte

	signed, signature []byte
}

// Parse takes a token apart. The error does not contain it.
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
			return nil, fmt.Errorf("part %d of the token is no base64url", i+1)
		}
	}
	var h header
	if err := json.Unmarshal(decoded[0], &h); err != nil {
		return nil, errors.New("the token's header is no JSON object")
	}
	if h.Critical != nil {
		return nil, errors.New("the token has critical extensions, which are not understood")
	}
	return &Token{
		Algorithm: h.Algorithm, KeyID: h.KeyID, Chain: h.Chain, Payload: decoded[1],
		signed: []byte(token[:strings.LastIndexByte(token, '.')]), signature: decoded[2],
	}, nil
}

// Verify returns nil if the token was signed with the private key of k, and by its algorithm.
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

// webKey is a public key as RFC 7517 writes it.
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

// EncodeSet returns keys as a JSON Web Key Set (RFC 7517), in their order.
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
			point = bytes.TrimPrefix(point, []byte{4}) // the form with both coordinates
			size := len(point) / 2
			w.Type, w.Curve = "EC", p.Params().Name
			w.X, w.Y = base64url.EncodeToString(point[:size]), base64url.EncodeToString(point[size:])
		}
		set.Keys = append(set.Keys, w)
	}
	return json.Marshal(set)
}
