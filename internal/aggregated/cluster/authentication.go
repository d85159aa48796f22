package cluster

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/identity/clientcert"
	"github.com/annexapi/annex/internal/identity/credential"
)

// reviewTimeout bounds one TokenReview or SubjectAccessReview.
const reviewTimeout = 10 * time.Second

// reviewBackoff returns the backoff of reviews, with upstream's values.
func reviewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

// openAuthentication creates the authenticator. A caller has request headers of the cluster, which proxies for its
// callers, a client certificate, a token that the cluster accepts, or is anonymous. The cluster authorizes each of
// them.
func (h *Cluster) openAuthentication() error {
	clientCA, err := h.authorities("client-ca", "Options.ClientCAFile", h.config.ClientCAFile, "client-ca-file")
	if err != nil {
		return err
	}
	if h.requestHeaders, err = h.openRequestHeaders(); err != nil {
		return err
	}
	var authorities []dynamiccertificates.CAContentProvider
	if clientCA != nil {
		authorities = append(authorities, clientCA)
	}
	if h.requestHeaders != nil {
		authorities = append(authorities, h.requestHeaders.CAContentProvider)
	}
	if len(authorities) > 0 {
		h.clientCA = clientcert.Union(authorities...)
	}
	tokens, err := h.openTokens()
	if err != nil {
		return err
	}
	if h.config.Own != nil {
		tokens = tokenunion.New(h.config.Own, tokens)
	}
	// Callers with recently verified certificates are found in a cache, before upstream's authenticators are called.
	var known, upstream []authenticator.Request
	if c := h.requestHeaders; c != nil {
		byHeaders, verified := clientcert.FrontProxy(c)
		known = append(known, credential.Noting(credential.Proxy, byHeaders))
		upstream = append(upstream, credential.Noting(credential.Proxy, verified))
	}
	if clientCA != nil {
		known = append(known, credential.Noting(credential.Certificate, clientcert.New(clientCA.VerifyOptions).Users()))
		upstream = append(
			upstream,
			credential.Noting(credential.Certificate, x509.NewDynamic(clientCA.VerifyOptions, x509.CommonNameUserConversion)),
		)
	}
	upstream = append(upstream, credential.Noting(credential.Token, bearertoken.New(tokens)),
		credential.Noting(credential.Token, websocket.NewProtocolAuthenticator(tokens)))
	h.authenticator = union.NewFailOnError(
		group.NewAuthenticatedGroupAdder(union.New(slices.Concat(known, upstream)...)),
		anonymous.NewAuthenticator(nil),
	)
	return nil
}

// authorities returns the authorities in a file, or else the published ones of the cluster; nil if the lookup is
// disabled.
func (h *Cluster) authorities(purpose, field, file, key string) (dynamiccertificates.CAContentProvider, error) {
	if file != "" {
		provider, err := dynamiccertificates.NewDynamicCAContentFromFile(purpose, file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		h.runners = append(h.runners, provider)
		return provider, nil
	}
	if h.config.Options.SkipLookup {
		return nil, nil
	}
	provider, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		purpose,
		requirements.AuthenticationNamespace,
		requirements.AuthenticationConfigMap,
		key,
		h.authentication,
	)
	if err != nil {
		return nil, fmt.Errorf("authorities from the cluster: %w", err)
	}
	h.runners = append(h.runners, provider)
	return provider, nil
}

// openRequestHeaders returns the configuration for trusting the cluster's request headers; nil if none are trusted.
func (h *Cluster) openRequestHeaders() (*authenticatorfactory.RequestHeaderConfig, error) {
	o := h.config.RequestHeader
	authorities, err := h.authorities("request-header", "Options.RequestHeader.ClientCAFile", o.ClientCAFile, requestHeaderCAKey)
	if err != nil || authorities == nil {
		return nil, err
	}
	if o.ClientCAFile != "" {
		return clientcert.RequestHeaders(o, authorities), nil
	}
	settings := headerrequest.NewRequestHeaderAuthRequestController(
		requirements.AuthenticationConfigMap,
		requirements.AuthenticationNamespace,
		h.authentication,
		usernameHeadersKey,
		"requestheader-uid-headers",
		"requestheader-group-headers",
		"requestheader-extra-headers-prefix",
		"requestheader-allowed-names",
	)
	h.runners = append(h.runners, settings)
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   authorities,
		AllowedClientNames:  headerrequest.StringSliceProviderFunc(settings.AllowedClientNames),
		UsernameHeaders:     headerrequest.StringSliceProviderFunc(settings.UsernameHeaders),
		UIDHeaders:          headerrequest.StringSliceProviderFunc(settings.UIDHeaders),
		GroupHeaders:        headerrequest.StringSliceProviderFunc(settings.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StringSliceProviderFunc(settings.ExtraHeaderPrefixes),
	}, nil
}

// requestHeaderCAKey is the key of the authorities that issue the cluster's own client certificate.
const requestHeaderCAKey = "requestheader-client-ca-file"

// usernameHeadersKey is the key of the headers with callers' names.
const usernameHeadersKey = "requestheader-username-headers"

// headersProblem returns an error if the cluster's own requests could not be authenticated.
func (h *Cluster) headersProblem() error {
	if h.requestHeaders == nil || h.config.Options.TolerateLookupFailure {
		return nil
	}
	_, read := h.requestHeaders.CAContentProvider.VerifyOptions()
	lacks := requestHeaderCAKey
	if read {
		if named(h.requestHeaders.UsernameHeaders.Value()) {
			return nil
		}
		lacks = usernameHeadersKey
	}
	return &responseError{
		fmt.Sprintf(
			"the ConfigMap %s in %s of the cluster has no %s: the cluster does not support aggregated servers",
			requirements.AuthenticationConfigMap,
			requirements.AuthenticationNamespace,
			lacks,
		),
	}
}

// named reports whether any header has a name. An empty name matches no header.
func named(headers []string) bool {
	return slices.ContainsFunc(headers, func(name string) bool { return strings.TrimSpace(name) != "" })
}

// AuthenticateRequest authenticates the caller of a request. AuthenticationUnavailable distinguishes errors about the
// caller from failures to ask the cluster.
func (h *Cluster) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	return h.authenticator.AuthenticateRequest(r)
}

// RequestHeaders returns the configuration of the headers with which the cluster names callers; nil if there are
// none. It stays current while Run runs.
func (h *Cluster) RequestHeaders() *authenticatorfactory.RequestHeaderConfig { return h.requestHeaders }

// ClientCA returns the authorities of all client certificates; nil if none are accepted. It stays current while Run
// runs.
func (h *Cluster) ClientCA() dynamiccertificates.CAContentProvider { return h.clientCA }
