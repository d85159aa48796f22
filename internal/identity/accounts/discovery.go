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

// The paths, media type and cache header of kube-apiserver's discovery endpoints.
const (
	configurationPath = "/.well-known/openid-configuration"
	keysPath          = "/openid/v1/jwks"

	keysType = "application/jwk-set+json"
	maxAge   = "public, max-age=3600"
)

// Discovery returns the endpoints with which others verify tokens, by path: OpenID Connect discovery and the public
// keys. jwksURI is the published location of the keys; if it is empty, they are at this server, whose host and port
// is address.
func (t *Tokens) Discovery(jwksURI, address string) map[string]http.Handler {
	if jwksURI == "" {
		jwksURI = "https://" + address + keysPath
	}
	return map[string]http.Handler{
		configurationPath: document("application/json", func() ([]byte, error) { return t.configuration(jwksURI) }),
		keysPath:          document(keysType, func() ([]byte, error) { return jws.EncodeSet(t.keys.Verifying()) }),
	}
}

// configuration returns the fields of the OpenID Provider Metadata that are needed to verify tokens.
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

// document serves the result of make. Clients may cache it for an hour.
func document(mediaType string, make func() ([]byte, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, fmt.Sprintf("%s is read with GET", r.URL.Path), http.StatusMethodNotAllowed)
			return
		}
		data, err := make()
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "Cannot publish the keys of service accounts")
			http.Error(w, "the keys cannot be published", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("Cache-Control", maxAge)
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data) // the client may have disconnected
	})
}
