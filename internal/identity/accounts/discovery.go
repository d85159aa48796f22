package accounts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/jws"
)

// The paths at which others find the keys, and what they answer with, as kube-apiserver's do.
const (
	configurationPath = "/.well-known/openid-configuration"
	keysPath          = "/openid/v1/jwks"

	keysType = "application/jwk-set+json"
	maxAge   = "public, max-age=3600"
)

// Discovery returns the endpoints by which others verify tokens, by path: OpenID Connect's
// discovery, and the public keys. The keys are at jwksURI; if that is empty, at this server,
// whose host and port is address.
func (t *Tokens) Discovery(jwksURI, address string) map[string]http.Handler {
	if jwksURI == "" {
		jwksURI = "https://" + address + keysPath
	}
	return map[string]http.Handler{
		configurationPath: document("application/json", func() ([]byte, error) { return t.configuration(jwksURI) }),
		keysPath:          document(keysType, func() ([]byte, error) { return jws.EncodeSet(t.keys.Verifying()) }),
	}
}

// configuration is the part of OpenID Provider Metadata that is for those who verify tokens.
func (t *Tokens) configuration(jwksURI string) ([]byte, error) {
	var algorithms []string
	for _, key := range t.keys.Verifying() {
		algorithms = append(algorithms, key.Algorithm)
	}
	slices.Sort(algorithms)
	return json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		KeysURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{t.options.Issuers[0], jwksURI, []string{"id_token"}, []string{"public"}, slices.Compact(algorithms)})
}

// document answers with what make returns. Others may keep it for an hour.
func document(mediaType string, make func() ([]byte, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, fmt.Sprintf("%s is read with GET", r.URL.Path), http.StatusMethodNotAllowed)
			return
		}
		data, err := make()
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "The keys of service accounts cannot be published")
			http.Error(w, "the keys cannot be published", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", maxAge)
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data) // a client that has gone away needs none
	})
}
