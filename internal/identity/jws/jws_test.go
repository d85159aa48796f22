package jws

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
)

func newSigner(t *testing.T, key crypto.Signer, err error) *Signer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ecdsaSigner(t *testing.T, curve elliptic.Curve) *Signer {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	return newSigner(t, key, err)
}

func rsaSigner(t *testing.T) *Signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	return newSigner(t, key, err)
}

func parse(t *testing.T, token string) *Token {
	t.Helper()
	parsed, err := Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestVerify_onlyOwnKey(t *testing.T) {
	t.Parallel()
	all := map[string]*Signer{
		"RS256": rsaSigner(
			t,
		),
		"ES256": ecdsaSigner(t, elliptic.P256()),
		"ES384": ecdsaSigner(t, elliptic.P384()),
		"ES512": ecdsaSigner(t, elliptic.P521()),
	}
	for algorithm, s := range all {
		for range 20 { // includes coordinates with leading zeros
			token, err := s.Sign([]byte(`{"a":1}`), []byte("certificate"))
			if err != nil {
				t.Fatal(err)
			}
			parsed := parse(t, token)
			if parsed.Algorithm != algorithm || parsed.KeyID != s.ID || string(parsed.Payload) != `{"a":1}` ||
				string(parsed.Chain[0]) != "certificate" {
				t.Errorf("%s: %+v", algorithm, parsed)
			}
			if err := s.Verify(parsed); err != nil {
				t.Errorf("%s: %v", algorithm, err)
			}
			for name, other := range all {
				if err := other.Verify(parsed); name != algorithm && err == nil {
					t.Errorf("%s is verified by a key for %s", algorithm, name)
				}
			}
			same := map[string]*Signer{"ES256": ecdsaSigner(t, elliptic.P256())}[algorithm]
			if same != nil && same.Verify(parsed) == nil {
				t.Error("another key of the same kind verifies")
			}
			head, rest, _ := strings.Cut(token, ".")
			payload, signature, _ := strings.Cut(rest, ".")
			changed := parse(t, head+"."+base64url.EncodeToString([]byte(`{"a":2}`))+"."+signature)
			if s.Verify(changed) == nil {
				t.Error("another payload is verified")
			}
			cut := parse(t, head+"."+payload+"."+base64url.EncodeToString(parsed.signature[1:]))
			if s.Verify(cut) == nil {
				t.Error("half a signature is verified")
			}
		}
	}
}

// Known attacks: no signature, and the public key as an HMAC secret.
func TestVerify_otherAlgorithm_isRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []*Signer{rsaSigner(t), ecdsaSigner(t, elliptic.P256())} {
		der, err := x509.MarshalPKIXPublicKey(s.Public)
		if err != nil {
			t.Fatal(err)
		}
		for _, algorithm := range []string{"none", "None", "", "HS256", "PS256", "ES384"} {
			signed := base64url.EncodeToString(
				fmt.Appendf(nil, `{"alg":%q,"kid":%q}`, algorithm, s.ID),
			) + "." + base64url.EncodeToString(
				[]byte(`{}`),
			)
			mac := hmac.New(sha256.New, der)
			mac.Write([]byte(signed))
			for _, signature := range [][]byte{nil, mac.Sum(nil), make([]byte, 64), make([]byte, 256)} {
				err := s.Verify(parse(t, signed+"."+base64url.EncodeToString(signature)))
				if err == nil || !strings.Contains(err.Error(), "algorithm") {
					t.Errorf("%s, a signature of %d bytes: %v", algorithm, len(signature), err)
				}
			}
		}
	}
}

func TestParse_invalidToken(t *testing.T) {
	t.Parallel()
	encode := func(s string) string { return base64url.EncodeToString([]byte(s)) }
	for token, want := range map[string]string{
		"":                                     "does not have three parts",
		"secret":                               "does not have three parts",
		"a.b.c.d":                              "does not have three parts",
		"a.b.c":                                "part 1 of the token is not base64url",
		encode(`{}`) + ".e30=.":                "part 2 of the token is not base64url",
		encode(`{}`) + ".e31.":                 "part 2 of the token is not base64url", // trailing bits
		encode(`[]`) + "." + encode("x") + ".": "header is not a JSON object",
		encode(`{"alg":"ES256","crit":["exp"]}`) + "." + encode("x") + ".": "critical extensions",
		strings.Repeat("a", MaxSize+1):                                     "more than 16384",
	} {
		_, err := Parse(token)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", token, err, want)
		}
		if err != nil && len(token) > 10 && strings.Contains(err.Error(), token) {
			t.Errorf("the error has the token: %v", err)
		}
	}
}

func TestNewKey_unsupported(t *testing.T) {
	t.Parallel()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, key := range map[string]crypto.PublicKey{
		"an RSA key of 1024 bits; at least 2048 are required":        &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537},
		"an ECDSA key on the curve P-224; use P-256, P-384 or P-521": p224.Public(),
		"a key of the type ed25519.PublicKey; use RSA or ECDSA":      public,
		"a key of the type string; use RSA or ECDSA":                 "key",
	} {
		if _, err := NewKey(key); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The examples of RFC 7517, appendix A.1.
func TestEncodeSet_likeRFC7517(t *testing.T) {
	t.Parallel()
	raw := func(text string) []byte {
		data, err := base64url.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	const x, y = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"
	const n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
	point, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, raw(x), raw(y)))
	if err != nil {
		t.Fatal(err)
	}
	var keys []*Key
	for _, public := range []crypto.PublicKey{
		point,
		&rsa.PublicKey{N: new(big.Int).SetBytes(raw(n)), E: 65537},
	} {
		k, err := NewKey(public)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	data, err := EncodeSet(keys)
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]string{
		{"kty": "EC", "crv": "P-256", "x": x, "y": y, "use": "sig", "alg": "ES256", "kid": keys[0].ID},
		{"kty": "RSA", "n": n, "e": "AQAB", "use": "sig", "alg": "RS256", "kid": keys[1].ID},
	} {
		if fmt.Sprint(set.Keys[i]) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", set.Keys[i], want)
		}
	}
	if none, err := EncodeSet(nil); err != nil || string(none) != `{"keys":[]}` {
		t.Errorf("%s, %v", none, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("e30.e30.")
	f.Add("a.b.c")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	k, err := NewKey(key.Public())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if parsed, err := Parse(token); err == nil && k.Verify(parsed) == nil {
			t.Errorf("%q is verified", token)
		}
	})
}
