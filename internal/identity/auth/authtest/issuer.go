// Package authtest contains an issuer of tokens, and authentication and authorization webhooks, for tests of servers.
package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Issuer issues JSON web tokens and serves its public keys by HTTPS. Its methods may be called concurrently.
type Issuer struct {
	// URL is the issuer URL, CA the authority of its certificate in PEM.
	URL, CA string
	// Away makes it close every connection.
	Away atomic.Bool
	// Asked counts the requests for its keys.
	Asked atomic.Int64

	// Exchange returns the claims of the ID token for a code; nil issues none. It has to be set before the first
	// request.
	Exchange func(form url.Values, client, secret string) (claims map[string]any)

	t    testing.TB
	mu   sync.Mutex
	id   int
	keys []*ecdsa.PrivateKey
}

// NewIssuer starts an issuer that ends with the test.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	i.Rotate()
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(
			w,
			map[string]any{
				"issuer":                 i.URL,
				"jwks_uri":               i.URL + "/keys",
				"authorization_endpoint": i.URL + "/authorize",
				"token_endpoint":         i.URL + "/token",
			},
		)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		client, secret, _ := r.BasicAuth()
		if r.ParseForm() != nil || i.Exchange == nil {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		claims := i.Exchange(r.PostForm, client, secret)
		if claims == nil {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		answer(w, map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": i.Token(claims)})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.Asked.Add(1)
		answer(w, i.public())
	})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.Away.Load() {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	i.URL = server.URL
	i.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return i
}

// Rotate replaces the signing key. The previous keys are no longer published.
func (i *Issuer) Rotate() {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = []*ecdsa.PrivateKey{key}
	i.id++
}

func (i *Issuer) public() map[string]any {
	i.mu.Lock()
	defer i.mu.Unlock()
	point, err := i.keys[0].PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	return map[string]any{"keys": []any{map[string]any{
		"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": fmt.Sprint(i.id),
		"x": encode(point[1:33]), "y": encode(point[33:]),
	}}}
}

// Token returns a token for the audience "annex" that expires in an hour. claims are added to the default claims, or
// replace them.
func (i *Issuer) Token(claims map[string]any) string {
	i.t.Helper()
	i.mu.Lock()
	key, id := i.keys[0], fmt.Sprint(i.id)
	i.mu.Unlock()
	return i.Sign(key, id, claims)
}

// Sign is like Token, with the given key and key ID.
func (i *Issuer) Sign(key *ecdsa.PrivateKey, id string, claims map[string]any) string {
	i.t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "annex", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	text := part(i.t, map[string]any{"alg": "ES256", "typ": "JWT", "kid": id}) + "." + part(i.t, all)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		i.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encode(signature)
}

// Forge is like Token, with a signature by a key that the issuer does not have, under the given ID.
func (i *Issuer) Forge(id string, claims map[string]any) string {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	return i.Sign(key, id, claims)
}

func part(t testing.TB, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return encode(data)
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // the client has disconnected
}
