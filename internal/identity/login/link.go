package login

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/identity/credential"
)

// A link signs a browser in, once, as the caller who made it. It has the rights of the credential that made it, and no
// others: its session keeps that credential and authenticates it anew each time, so that the session ends when the
// credential does. A certificate, which is no secret, is stored with the session. A token stays in memory, and its
// session ends with the server.

// LinkLifetime is how long a link may be used.
const LinkLifetime = 5 * time.Minute

// Bounds of the links that are kept, of the unused ones of one user, and of the tokens of sessions.
const (
	maxLinks        = 1024
	maxLinksOfUser  = 16
	maxHeldTokens   = 1024
	maxCertificates = 256
	spentLinksFor   = 15 * time.Minute // used and expired links are kept to name the reason of a refusal
)

// link is a link that was made. It has a digest of its secret only.
type link struct {
	digest  string
	expires time.Time
	used    bool
	user    string
	owner   owner
}

// owner is the credential of a session: a certificate or a token.
type owner struct {
	name, uid   string
	certificate []byte // DER
	token       string
}

// links are the links of this process.
type links struct {
	clock clock.PassiveClock
	// callers authenticates the credentials; nil means that there are no links.
	callers authenticator.Request
	// tokens has the credentials of sessions by the name of the session, certificates the parsed certificates of
	// sessions by their bytes.
	tokens, certificates *cache.LRUExpireCache

	mu    sync.Mutex
	known map[string]*link // by the name of the ticket
}

func newLinks(c clock.PassiveClock) *links {
	return &links{
		clock:        c,
		tokens:       cache.NewLRUExpireCacheWithClock(maxHeldTokens, expiring{c}),
		certificates: cache.NewLRUExpireCacheWithClock(maxCertificates, expiring{c}),
		known:        map[string]*link{},
	}
}

// AcceptLinks lets callers make links, whose credentials it authenticates with callers. It is called before the first
// request.
func (l *Login) AcceptLinks(callers authenticator.Request) { l.links.callers = callers }

// HasLinks reports whether callers can make links.
func (l *Login) HasLinks() bool { return l.links.callers != nil }

// NewLink returns the secret of a new link for the owner of a certificate.
func (l *Login) NewLink(ctx context.Context, certificate *x509.Certificate) (string, error) {
	if !l.HasLinks() {
		return "", errors.New("make a sign-in link: the server accepts none")
	}
	who := owner{certificate: certificate.Raw}
	info, err := l.links.authenticate(ctx, who)
	if err != nil {
		return "", fmt.Errorf("make a sign-in link: %w", err)
	}
	who.name, who.uid = info.GetName(), info.GetUID()
	return l.links.add(who)
}

// add makes a link. Above the bound of a user, the user's oldest unused link ends.
func (l *links) add(who owner) (string, error) {
	t, now := newTicket(), l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.known, func(_ string, k *link) bool { return now.Sub(k.expires) > spentLinksFor })
	var unused []string
	for name, k := range l.known {
		if k.user == who.name && k.usable(now) {
			unused = append(unused, name)
		}
	}
	if len(unused) >= maxLinksOfUser {
		delete(l.known, slices.MinFunc(unused, func(a, b string) int { return l.known[a].expires.Compare(l.known[b].expires) }))
	}
	if len(l.known) >= maxLinks {
		maps.DeleteFunc(l.known, func(_ string, k *link) bool { return !k.usable(now) })
	}
	if len(l.known) >= maxLinks {
		return "", refusal{
			code: http.StatusTooManyRequests, kind: unavailable, text: "there are too many unused sign-in links: try again in a minute", after: 60,
		}
	}
	l.known[t.name()] = &link{digest: t.digest(), expires: now.Add(LinkLifetime), user: who.name, owner: who}
	return t.String(), nil
}

func (k *link) usable(now time.Time) bool { return !k.used && now.Before(k.expires) }

// use returns the owner of a link. It does so once: of concurrent calls, one succeeds. A link that is presented with a
// wrong secret ends.
func (l *links) use(text, another string) (owner, error) {
	t, ok := parseTicket(text)
	if !ok {
		return owner{}, bad(invalidGrant, "the sign-in link is incomplete: copy all of it, or %s", another)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.known[t.name()]
	switch {
	case k == nil:
		return owner{}, bad(invalidGrant, "the server does not know this sign-in link, perhaps because it was started again: %s", another)
	case subtle.ConstantTimeCompare([]byte(k.digest), []byte(t.digest())) != 1:
		k.used = true
		return owner{}, bad(invalidGrant, "the sign-in link is wrong: %s", another)
	case k.used:
		return owner{}, bad(invalidGrant, "the sign-in link was used before, and works only once: %s", another)
	case !l.clock.Now().Before(k.expires):
		return owner{}, bad(invalidGrant, "the sign-in link has expired, %d minutes after it was made: %s", int(LinkLifetime.Minutes()), another)
	}
	k.used = true
	who := k.owner
	k.owner = owner{} // a token is not kept longer than needed
	return who, nil
}

// authenticate returns the caller of a credential according to the present rules.
func (l *links) authenticate(ctx context.Context, who owner) (user.Info, error) {
	accepted := &credential.Credential{}
	r, err := http.NewRequestWithContext(credential.With(ctx, accepted), http.MethodPost, LinksPath, nil)
	if err != nil {
		return nil, fmt.Errorf("authenticate a session: %w", err)
	}
	want := credential.Token
	if who.token != "" {
		r.Header.Set("Authorization", "Bearer "+who.token)
	} else {
		certificate, err := l.parsed(who.certificate)
		if err != nil {
			return nil, errRefused
		}
		want = credential.Certificate
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{certificate}}
	}
	response, ok, err := l.callers.AuthenticateRequest(r)
	switch {
	case err != nil && errors.Is(err, credential.ErrUnavailable):
		return nil, credential.Unavailable(err)
	case err != nil || !ok || accepted.Kind != want:
		return nil, errRefused
	case who.name != "" && (response.User.GetName() != who.name || response.User.GetUID() != who.uid):
		return nil, errRefused
	}
	return response.User, nil
}

// parsed returns a certificate, the same one each time, by which authenticators know that they have verified it.
func (l *links) parsed(der []byte) (*x509.Certificate, error) {
	if known, ok := l.certificates.Get(string(der)); ok {
		return known.(*x509.Certificate), nil
	}
	certificate, err := x509.ParseCertificate(der)
	if err == nil {
		l.certificates.Add(string(der), certificate, time.Hour)
	}
	return certificate, err
}

// ownerOf returns the credential of a session that a link began; nil for other sessions.
func (l *links) ownerOf(s *Session) (*owner, error) {
	switch {
	case len(s.Certificate) > 0:
		return &owner{name: s.User, uid: s.UID, certificate: s.Certificate}, nil
	case !s.ByToken:
		return nil, nil
	}
	token, ok := l.tokens.Get(s.Name)
	if !ok {
		return nil, errRefused // the server was started again
	}
	return &owner{name: s.User, uid: s.UID, token: token.(string)}, nil
}

// serveNewLink makes a link for the caller, who must have a token or a certificate.
func (l *Login) serveNewLink(w http.ResponseWriter, r *http.Request) {
	secret, err := l.makeLink(r)
	if err != nil {
		refuse(w, refusalOf(r, err))
		return
	}
	answer(w, http.StatusOK, map[string]any{"link": secret, "expires_in": int(LinkLifetime.Seconds())})
}

func (l *Login) makeLink(r *http.Request) (string, error) {
	// Pages do not make links: a page of another origin would, with the certificate that the browser shows.
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return "", forbidden("sign-in links are not made by pages: use the verb console")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return "", forbidden("a sign-in link cannot impersonate: use a credential of the user")
		}
	}
	caller, known := genericrequest.UserFrom(r.Context())
	if !known || caller.GetName() == user.Anonymous {
		const text = "a sign-in link needs a valid token or client certificate of its user"
		return "", refusal{code: http.StatusUnauthorized, kind: "login_required", text: text}
	}
	who := owner{name: caller.GetName(), uid: caller.GetUID()}
	if token, ok := bearer(r); ok {
		if err := l.mayDelegate(r.Context(), token); err != nil {
			return "", err
		}
		who.token = token
	} else if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who.certificate = r.TLS.PeerCertificates[0].Raw
	}
	if who.token == "" && who.certificate == nil {
		return "", forbidden("a sign-in link needs a token or a client certificate")
	}
	_, err := l.links.authenticate(r.Context(), who)
	if errors.Is(err, errRefused) {
		err = forbidden("a sign-in link needs a token or a client certificate that identifies its user alone")
	}
	var secret string
	if err == nil {
		secret, err = l.links.add(who)
	}
	l.note(r, "link", who.name, err)
	return secret, err
}

// bearer returns the bearer token of a request.
func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

// mayDelegate refuses tokens of sessions that a token began: a chain of sessions would each have to authenticate all of
// the earlier ones.
func (l *Login) mayDelegate(ctx context.Context, token string) error {
	c, err := l.verify(token)
	if c == nil || err != nil {
		return nil // a token of another issuer
	}
	session, err := l.sessions.get(ctx, c.Session)
	if err == nil && session.ByToken {
		return forbidden("the token belongs to a page that a sign-in link has opened: use the credential that made the link")
	}
	return nil
}

// useLink uses a link: it begins the session of a page.
func (l *Login) useLink(w http.ResponseWriter, r *http.Request) (string, error) {
	if err := l.fromHere(r, true); err != nil {
		return "", err
	}
	if r.Header.Get("X-Annex-Session") != "1" {
		return "", forbidden("the header X-Annex-Session: 1 is missing")
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return "", refusal{code: http.StatusUnsupportedMediaType, kind: invalidRequest, text: "the body must be application/json"}
	}
	data, err := readBody(r)
	if err != nil {
		return "", err
	}
	var given struct {
		Link string `json:"link"`
	}
	if err := json.Unmarshal(data, &given); err != nil || given.Link == "" {
		return "", bad(invalidRequest, "the body must be an object with link")
	}
	another := fmt.Sprintf("make another with %s", l.LinkCommand())
	who, err := l.links.use(given.Link, another)
	if err == nil {
		_, err = l.links.authenticate(r.Context(), who)
		if errors.Is(err, errRefused) {
			err = bad(invalidGrant, "the credential that made the sign-in link is no longer valid: %s", another)
		}
	}
	if err == nil {
		session := &Session{Type: ofPage, User: who.name, UID: who.uid, Certificate: who.certificate, ByToken: who.token != ""}
		if err = l.startPage(w, r, session, l.options.SessionLifetime); err == nil && session.ByToken {
			l.links.tokens.Add(session.Name, who.token, l.options.SessionLifetime)
		}
	}
	l.note(r, "link", who.name, err)
	return who.name, err
}

// LinkCommand is the command that makes a link.
func (l *Login) LinkCommand() string { return l.options.Title + " console" }
