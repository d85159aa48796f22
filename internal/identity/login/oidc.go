package login

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/pagecookie"
	"github.com/annexapi/annex/internal/identity/jws"
)

const (
	// stateName is the name of the cookie that holds the state of a sign-in at a provider.
	stateName = pagecookie.Provider
	// stateLifetime bounds the duration of a sign-in at a provider.
	stateLifetime = 10 * time.Minute
	// providerLifetime bounds sessions from providers, because the server does not ask the provider again whether the
	// user is still valid.
	providerLifetime = 12 * time.Hour
	// discovered is how long a provider's metadata is cached. unreachable is how long the server waits after a failed
	// request before it contacts the provider again.
	discovered, unreachable = 10 * time.Minute, 5 * time.Second
	providerTimeout         = 10 * time.Second
	maxProviderAnswer       = 1 << 20
)

// Provider is an OpenID Connect issuer at which people sign in. The entry for the issuer in the
// AuthenticationConfiguration maps the claims of its ID tokens to a user.
type Provider struct {
	Name string `json:"name"`
	// Title is the name that people see; empty means Name.
	Title        string `json:"title,omitempty"`
	Issuer       string `json:"issuer"`
	ClientID     string `json:"clientID"`
	ClientSecret string `json:"clientSecret,omitempty"`
	// Scopes are the requested scopes; empty means openid, profile and email.
	Scopes []string `json:"scopes,omitempty"`
	// CertificateAuthorityFile is a PEM file with the authorities of the issuer's certificate; empty means the
	// system's authorities.
	CertificateAuthorityFile string `json:"certificateAuthorityFile,omitempty"`
}

func (p *Provider) check() error {
	switch {
	case !isEndpoint(p.Issuer):
		return fmt.Errorf("issuer %q is not an https URL", p.Issuer)
	case p.ClientID == "":
		return errors.New("clientID is empty")
	case len(p.Scopes) > 0 && !slices.Contains(p.Scopes, "openid"):
		return errors.New("the scopes lack openid")
	}
	return nil
}

// isEndpoint reports whether a URL may be an endpoint of an issuer. Secrets are sent there, so it has to be https
// unless the host is loopback.
func isEndpoint(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && u.Fragment == "" && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()))
}

// Choice is a provider as the sign-in page offers it.
type Choice struct{ Name, Title string }

// Choices returns the current providers.
func (l *Login) Choices() []Choice {
	var all []Choice
	for _, p := range l.users.current.Load().Providers {
		all = append(all, Choice{p.Name, cmp.Or(p.Title, p.Name)})
	}
	return all
}

// documents caches the metadata of the providers.
type documents struct {
	mu    sync.Mutex
	known map[string]*document // by provider
}

type document struct {
	provider Provider
	client   *http.Client

	mu    sync.Mutex
	until time.Time
	err   error
	endpoints
}

type endpoints struct {
	Issuer        string `json:"issuer"`
	Authorization string `json:"authorization_endpoint"`
	Token         string `json:"token_endpoint"`
}

// of returns the metadata of a provider, and drops removed or changed providers from the cache.
func (d *documents) of(p *Provider, known map[string]*Provider) (*document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, old := range d.known {
		if now := known[name]; now == nil || !old.provider.equal(now) {
			old.client.CloseIdleConnections()
			delete(d.known, name)
		}
	}
	if known := d.known[p.Name]; known != nil {
		return known, nil
	}
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.CertificateAuthorityFile != "" {
		data, err := os.ReadFile(p.CertificateAuthorityFile)
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("authorities: %s has no certificate", p.CertificateAuthorityFile)
		}
	}
	made := &document{provider: *p, client: &http.Client{
		Timeout: providerTimeout,
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			TLSClientConfig:     trust,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 2,
			IdleConnTimeout:     time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	d.known[p.Name] = made
	return made, nil
}

func (p Provider) equal(other *Provider) bool {
	return p.Issuer == other.Issuer && p.CertificateAuthorityFile == other.CertificateAuthorityFile
}

// discover returns the endpoints. Concurrent calls share one request to the provider.
func (d *document) discover(ctx context.Context, now time.Time) (endpoints, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now.Before(d.until) {
		return d.endpoints, d.err
	}
	d.endpoints, d.err = endpoints{}, nil
	// Other requests may wait for this response, so it must not be canceled with the first one.
	request, err := http.NewRequestWithContext(
		context.WithoutCancel(ctx),
		http.MethodGet,
		strings.TrimSuffix(d.provider.Issuer, "/")+"/.well-known/openid-configuration",
		nil,
	)
	if err == nil {
		err = d.ask(request, &d.endpoints)
	}
	switch {
	case err != nil:
	case d.Issuer != d.provider.Issuer:
		err = fmt.Errorf("its document has the issuer %q", d.Issuer)
	case !isEndpoint(d.Authorization) || !isEndpoint(d.Token):
		err = errors.New("its document has no authorization or token endpoint")
	}
	d.err, d.until = err, now.Add(discovered)
	if err != nil {
		d.until = now.Add(unreachable)
	}
	return d.endpoints, err
}

// ask sends a request and decodes the response into into.
func (d *document) ask(request *http.Request, into any) error {
	response, err := d.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxProviderAnswer+1))
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", response.Status)
	case len(data) > maxProviderAnswer:
		return errors.New("its answer is too long")
	}
	if json.Unmarshal(data, into) != nil {
		return errors.New("its answer is not valid JSON")
	}
	return nil
}

// signInState is the state of a sign-in at a provider. It is kept in a cookie of the browser: the sign-in can only be
// completed by the browser that began it, and the server keeps no state.
type signInState struct {
	Provider string `json:"p"`
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Return   string `json:"r"`
}

func random() string {
	var data [32]byte
	rand.Read(data[:])
	return encoding.EncodeToString(data[:])
}

// isLocal reports whether target is a path on this server.
func isLocal(target string) bool {
	u, err := url.Parse(target)
	return err == nil && u.Scheme == "" && u.Host == "" && u.User == nil && strings.HasPrefix(target, "/") &&
		!strings.HasPrefix(target, "//") && !strings.ContainsAny(target, "\\\r\n\t")
}

// serveProvider redirects a browser to a provider.
func (l *Login) serveProvider(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	known := l.users.current.Load()
	p := known.providers[query.Get("provider")]
	back := cmp.Or(query.Get("return"), "/")
	switch {
	case p == nil:
		l.fail(w, http.StatusNotFound, "Unknown login provider.")
		return
	case single(query) != nil || !isLocal(back) || len(back) > maxState:
		l.fail(w, http.StatusBadRequest, "The page to return to must be a page of this server.")
		return
	}
	at, err := l.endpointsOf(r, p, known)
	if err != nil {
		l.report(r, p, err)
		l.fail(w, http.StatusBadGateway, cmp.Or(p.Title, p.Name)+" does not answer correctly. Try again later.")
		return
	}
	a := signInState{p.Name, random(), random(), random(), back}
	data, err := json.Marshal(a)
	if err != nil {
		l.fail(w, http.StatusInternalServerError, "Signing in does not work.")
		return
	}
	// The cookie cannot be SameSite=Strict: the provider redirects back from another site.
	c := cookie(r, stateName, encoding.EncodeToString(data), http.SameSiteLaxMode)
	c.MaxAge = int(stateLifetime.Seconds())
	http.SetCookie(w, c)
	sum := sha256.Sum256([]byte(a.Verifier))
	to, err := url.Parse(at.Authorization)
	if err != nil {
		l.fail(w, http.StatusBadGateway, cmp.Or(p.Title, p.Name)+" does not answer correctly. Try again later.")
		return
	}
	values := to.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": p.ClientID, "redirect_uri": l.base(r) + callbackPath, "scope": p.scopes(),
		"state": a.State, "nonce": a.Nonce, "code_challenge": encoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
	} {
		values.Set(name, value)
	}
	to.RawQuery = values.Encode()
	w.Header().Set("Location", to.String())
	w.WriteHeader(http.StatusSeeOther)
}

func (p *Provider) scopes() string {
	if len(p.Scopes) == 0 {
		return "openid profile email"
	}
	return strings.Join(p.Scopes, " ")
}

func (l *Login) endpointsOf(r *http.Request, p *Provider, known *userIndex) (endpoints, error) {
	d, err := l.documents.of(p, known.providers)
	if err != nil {
		return endpoints{}, err
	}
	return d.discover(r.Context(), l.options.Clock.Now())
}

// fail shows an error page.
func (l *Login) fail(w http.ResponseWriter, code int, text string) {
	l.show(w, code, pageData{Title: l.options.Title, Message: text, Broken: true})
}

// report logs an error of a provider, at most once in each reportInterval.
func (l *Login) report(r *http.Request, p *Provider, err error) {
	if l.guard.mayReport() {
		klog.FromContext(r.Context()).Error(err, "Users cannot sign in at a login provider", "provider", p.Name, "issuer", p.Issuer)
	}
}

// serveCallback handles the redirect back from a provider.
func (l *Login) serveCallback(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	data, err := encoding.DecodeString(cookieOf(r, stateName))
	var a signInState
	if err != nil || json.Unmarshal(data, &a) != nil || single(query) != nil || a.State == "" ||
		subtle.ConstantTimeCompare([]byte(a.State), []byte(query.Get("state"))) != 1 || !isLocal(a.Return) {
		l.fail(w, http.StatusBadRequest, "The login was not started in this browser, or it has expired: go back and start again.")
		return
	}
	http.SetCookie(w, cookie(r, stateName, "", http.SameSiteLaxMode))
	known := l.users.current.Load()
	p := known.providers[a.Provider]
	if p == nil {
		l.fail(w, http.StatusNotFound, "Unknown login provider.")
		return
	}
	info, err := l.identity(r, p, known, a, query)
	if err == nil {
		session := &Session{Type: ofPage, User: info.GetName(), UID: info.GetUID(), Groups: info.GetGroups(), Provider: p.Name}
		err = l.startPage(w, r, session, min(providerLifetime, l.options.SessionLifetime))
		l.note(r, "provider:"+p.Name, info.GetName(), err)
	} else {
		l.note(r, "provider:"+p.Name, "", bad(invalidGrant, "%s", err))
	}
	if err != nil {
		l.report(r, p, err)
		l.fail(w, http.StatusForbidden, cmp.Or(p.Title, p.Name)+" did not let you sign in here. See the server's log for details.")
		return
	}
	w.Header().Set("Location", a.Return)
	w.WriteHeader(http.StatusSeeOther)
}

// identity exchanges a provider's code for an ID token, and returns its user.
func (l *Login) identity(r *http.Request, p *Provider, known *userIndex, a signInState, query url.Values) (user.Info, error) {
	switch {
	case query.Get("error") != "":
		return nil, fmt.Errorf("the provider answers %.100q", query.Get("error"))
	case query.Get("code") == "":
		return nil, errors.New("the provider sent no code")
	case query.Has("iss") && query.Get("iss") != p.Issuer:
		return nil, fmt.Errorf("the answer has the issuer %.100q", query.Get("iss"))
	}
	at, err := l.endpointsOf(r, p, known)
	if err != nil {
		return nil, err
	}
	d, err := l.documents.of(p, known.providers)
	if err != nil {
		return nil, err
	}
	values := url.Values{
		"grant_type": {"authorization_code"}, "code": {query.Get("code")}, "redirect_uri": {l.base(r) + callbackPath},
		"client_id": {p.ClientID}, "code_verifier": {a.Verifier},
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, at.Token, strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Accept", "application/json")
	if p.ClientSecret != "" {
		request.SetBasicAuth(url.QueryEscape(p.ClientID), url.QueryEscape(p.ClientSecret))
	}
	var answered struct {
		ID string `json:"id_token"`
	}
	if err := d.ask(request, &answered); err != nil {
		return nil, fmt.Errorf("exchange the code: %w", err)
	}
	return l.verifyID(r.Context(), p, a.Nonce, answered.ID)
}

// verifyID returns the user of an ID token. It reports an error unless the token was issued to this client and for
// this sign-in.
func (l *Login) verifyID(ctx context.Context, p *Provider, nonce, token string) (user.Info, error) {
	response, ok, err := l.options.IDTokens.AuthenticateToken(ctx, token)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the ID token: %w", err)
	case !ok:
		return nil, errors.New("the AuthenticationConfiguration does not have the issuer of the ID token")
	}
	// The signature has been verified. The audience and the nonce remain to be checked.
	parsed, err := jws.Parse(token)
	if err != nil {
		return nil, err
	}
	var claims struct {
		Issuer   string          `json:"iss"`
		Audience json.RawMessage `json:"aud"`
		Party    string          `json:"azp"`
		Nonce    string          `json:"nonce"`
	}
	if err := json.Unmarshal(parsed.Payload, &claims); err != nil {
		return nil, errors.New("the ID token's claims are not readable")
	}
	var audience []string
	if json.Unmarshal(claims.Audience, &audience) != nil {
		audience = make([]string, 1)
		if json.Unmarshal(claims.Audience, &audience[0]) != nil {
			return nil, errors.New("the ID token has no audience")
		}
	}
	switch {
	case claims.Issuer != p.Issuer:
		return nil, fmt.Errorf("the ID token has the issuer %q", claims.Issuer)
	case !slices.Contains(audience, p.ClientID) || claims.Party != "" && claims.Party != p.ClientID || len(audience) > 1 && claims.Party == "":
		return nil, fmt.Errorf("the ID token is for %q, not for %q", audience, p.ClientID)
	case subtle.ConstantTimeCompare([]byte(claims.Nonce), []byte(nonce)) != 1:
		return nil, errors.New("the ID token belongs to another login attempt")
	}
	return response.User, nil
}
