package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/annexapi/annex/internal/base/configfile"
	"github.com/annexapi/annex/internal/identity/credential"
)

const (
	// tokenMemory is how long the user of a token is cached, as in kube-apiserver.
	tokenMemory = 10 * time.Second
	// issuerPatience bounds how long a reload waits for new issuers. If only the mapping of an issuer changes, the
	// old entry stays in force meanwhile, and the issuer's tokens are accepted without interruption.
	issuerPatience = 10 * time.Second
)

// Configuration authenticates callers by an AuthenticationConfiguration of apiserver.config.k8s.io: by tokens of its
// issuers, and by its rules for anonymous requests. Run reloads the file when it changes.
type Configuration struct {
	options ConfigurationOptions
	file    *configfile.File
	current atomic.Pointer[authenticators]
	running chan struct{} // closed when Run begins
	begin   sync.Once
	// life is the lifetime of the issuers.
	life context.Context
	end  context.CancelFunc
}

// ConfigurationOptions configure OpenConfiguration.
type ConfigurationOptions struct {
	File string
	// Server is the name of the server in metrics.
	Server string
	// Disallowed are issuers that must not be in the file.
	Disallowed []string
	// Audiences are the audiences that the issuers' tokens are valid for, if a request requires any.
	Audiences authenticator.Audiences
}

// authenticators is one loaded content of the file.
type authenticators struct {
	issuers []*issuer
	// tokens authenticates the tokens of the issuers, with a cache. Each loaded content has a cache of its own.
	tokens    authenticator.Token
	anonymous authenticator.Request // nil without an entry in the file
}

// issuer is an entry of the file with its authenticator.
type issuer struct {
	apiserver.JWTAuthenticator
	oidc.AuthenticatorTokenWithHealthCheck
	end context.CancelFunc
}

var _ authenticator.Token = (*Configuration)(nil)

// OpenConfiguration reads the file. It does not contact issuers before Run is called; the tokens of an issuer are
// rejected until the issuer has responded. An error is a single line with the file and, for a mistake in it, line and
// field. Close ends the background work.
func OpenConfiguration(ctx context.Context, options ConfigurationOptions) (*Configuration, error) {
	c := &Configuration{options: options, running: make(chan struct{})}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	c.current.Store(&authenticators{})
	metrics.RegisterMetrics()
	c.file = &configfile.File{
		What: "Authentication configuration", Path: options.File, Use: c.use,
		Reloaded: func(data string) { metrics.RecordAuthenticationConfigAutomaticReloadSuccess(options.Server, data) },
		Refused:  func() { metrics.RecordAuthenticationConfigAutomaticReloadFailure(options.Server) },
	}
	data, err := c.file.Open(ctx)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("Options.AuthenticationConfigFile %s: %w", options.File, err)
	}
	metrics.RecordAuthenticationConfigLastConfigInfo(options.Server, data)
	return c, nil
}

// Close stops the issuers. Afterwards all tokens are rejected.
func (c *Configuration) Close() { c.end() }

// Run reloads the file when it changes, until ctx is done.
func (c *Configuration) Run(ctx context.Context) {
	c.begin.Do(func() { close(c.running) })
	c.file.Run(ctx)
}

// AuthenticateToken implements authenticator.Token.
func (c *Configuration) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if tokens := c.current.Load().tokens; tokens != nil {
		return tokens.AuthenticateToken(ctx, token)
	}
	return nil, false, nil
}

// AuthenticateRequest authenticates requests without credentials.
func (c *Configuration) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if anonymous := c.current.Load().anonymous; anonymous != nil {
		return anonymous.AuthenticateRequest(r)
	}
	return authenticateAnonymous(r)
}

// use puts a new content of the file into force.
func (c *Configuration) use(ctx context.Context, data []byte) error {
	parsed, err := parseAuthentication(data, c.options.Disallowed)
	if err != nil {
		return err
	}
	old := c.current.Load()
	next := &authenticators{anonymous: anonymousOf(parsed.Anonymous)}
	var added []*issuer
	for _, entry := range parsed.JWT {
		known := old.issuer(entry)
		if known == nil {
			if known, err = c.newIssuer(entry); err != nil {
				end(added)
				return err
			}
			added = append(added, known)
		}
		next.issuers = append(next.issuers, known)
	}
	var tokens []authenticator.Token
	for _, i := range next.issuers {
		tokens = append(tokens, i)
	}
	if len(tokens) > 0 {
		agnostic := authenticator.WrapAudienceAgnosticToken(c.options.Audiences, tokenunion.New(tokens...))
		next.tokens = credential.Uncached(cache.New(agnostic, false, tokenMemory, 0), agnostic)
	}
	if len(old.issuers) > 0 { // at the start there are no tokens to keep accepting
		healthy := func(context.Context) (bool, error) {
			for _, i := range added {
				if i.HealthCheck() != nil {
					return false, nil
				}
			}
			return true, nil
		}
		// An unreachable issuer must not prevent the removal of another one.
		_ = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, issuerPatience, true, healthy)
	}
	c.current.Store(next)
	for _, i := range old.issuers {
		if next.issuer(i.JWTAuthenticator) == nil {
			i.end()
			if !next.has(i.Issuer.URL) {
				oidc.DeleteJWKSFetchMetrics(i.Issuer.URL, c.options.Server)
			}
		}
	}
	return nil
}

// issuer returns the issuer of an entry, or nil.
func (c *authenticators) issuer(entry apiserver.JWTAuthenticator) *issuer {
	for _, i := range c.issuers {
		if reflect.DeepEqual(i.JWTAuthenticator, entry) {
			return i
		}
	}
	return nil
}

func (c *authenticators) has(url string) bool {
	for _, i := range c.issuers {
		if i.Issuer.URL == url {
			return true
		}
	}
	return false
}

func end(issuers []*issuer) {
	for _, i := range issuers {
		i.end()
	}
}

func (c *Configuration) newIssuer(entry apiserver.JWTAuthenticator) (*issuer, error) {
	client, err := newIssuerClient(entry.Issuer, c.running)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(c.life)
	known, err := oidc.New(life, oidc.Options{
		JWTAuthenticator:     entry,
		Client:               client,
		SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
		DisallowedIssuers:    c.options.Disallowed,
		APIServerID:          c.options.Server,
	})
	if err != nil {
		end()
		return nil, fmt.Errorf("issuer %s: %w", entry.Issuer.URL, err)
	}
	return &issuer{entry, known, func() { end(); client.CloseIdleConnections() }}, nil
}

func parseAuthentication(data []byte, disallowed []string) (*apiserver.AuthenticationConfiguration, error) {
	parsed, err := configfile.Decode[apiserver.AuthenticationConfiguration](data, "AuthenticationConfiguration")
	if err != nil {
		return nil, err
	}
	mistakes := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), parsed, disallowed)
	if err := configfile.Mistakes(data, mistakes); err != nil {
		return nil, err
	}
	for i, entry := range parsed.JWT {
		if entry.Issuer.EgressSelectorType != "" {
			return nil, configfile.Mistake(
				data,
				fmt.Sprintf("jwt[%d].issuer.egressSelectorType", i),
				errors.New("this server has no egress selectors"),
			)
		}
	}
	return parsed, nil
}

// anonymousOf returns the authenticator of requests without credentials; nil if the file leaves them to the server.
func anonymousOf(config *apiserver.AnonymousAuthConfig) authenticator.Request {
	switch {
	case config == nil:
		return nil
	case !config.Enabled:
		return authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil })
	default:
		return anonymous.NewAuthenticator(config.Conditions)
	}
}
