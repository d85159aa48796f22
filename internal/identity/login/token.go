package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/internal/identity/jws"
)

// skew is the tolerated clock difference between servers that share a storage.
const skew = time.Minute

// claims are the claims of an access token.
type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  []string `json:"aud"`
	Expires   int64    `json:"exp"`
	NotBefore int64    `json:"nbf"`
	IssuedAt  int64    `json:"iat"`
	ID        string   `json:"jti"`
	Session   string   `json:"sid"`
	Client    string   `json:"client_id,omitempty"`
}

// issue signs an access token of a session.
func (l *Login) issue(session *Session, subject string) (token string, lifetime time.Duration, err error) {
	now := l.options.Clock.Now()
	lifetime = min(l.options.TokenLifetime, session.Ends.Sub(now))
	payload, err := json.Marshal(claims{
		Issuer: l.options.Issuer, Subject: subject, Audience: l.options.Audiences,
		Expires: now.Add(lifetime).Unix(), NotBefore: now.Unix(), IssuedAt: now.Unix(),
		ID: uuid.NewString(), Session: session.Name, Client: session.Client,
	})
	if err != nil {
		return "", 0, fmt.Errorf("encode claims: %w", err)
	}
	token, err = l.options.Keys.Signer().Sign(payload)
	return token, lifetime, err
}

// verify returns the claims of a token that the server has signed, without checking its validity period. It returns
// nil if the token has another issuer.
func (l *Login) verify(token string) (*claims, error) {
	parsed, err := jws.Parse(token)
	if err != nil {
		return nil, nil // not a JSON web signature
	}
	c := &claims{}
	if err := json.Unmarshal(parsed.Payload, c); err != nil || c.Issuer != l.options.Issuer {
		return nil, nil
	}
	key := l.options.Keys.Key(parsed.KeyID)
	if key == nil {
		return nil, fmt.Errorf("the token's key %.64q is unknown or retired", parsed.KeyID)
	}
	return c, key.Verify(parsed)
}

var _ authenticator.Token = (*Login)(nil)

// AuthenticateToken implements authenticator.Token. It has no opinion on tokens of other issuers. Errors do not
// contain the token.
func (l *Login) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, err := l.verify(token)
	if c == nil || err != nil {
		return nil, false, err
	}
	now := l.options.Clock.Now()
	switch {
	case !now.Before(time.Unix(c.Expires, 0)):
		return nil, false, fmt.Errorf("the token of %s has expired", c.Subject)
	case now.Before(time.Unix(max(c.NotBefore, c.IssuedAt), 0).Add(-skew)):
		return nil, false, fmt.Errorf("the token of %s is not valid yet", c.Subject)
	}
	asked, ok := authenticator.AudiencesFrom(ctx)
	if !ok || len(asked) == 0 {
		asked = l.options.Audiences
	}
	audiences := asked.Intersect(c.Audience)
	if len(audiences) == 0 {
		return nil, false, fmt.Errorf("the token of %s is for the audiences %q, not for %q", c.Subject, c.Audience, asked)
	}
	session, err := l.sessions.get(ctx, c.Session)
	if err != nil {
		return nil, false, fmt.Errorf("token of %s: %w", c.Subject, err)
	}
	info, err := l.callerOf(ctx, session)
	if err != nil {
		return nil, false, fmt.Errorf("token of %s: %w", c.Subject, err)
	}
	info.Extra = withCredentialID(info.Extra, "JTI="+c.ID)
	return &authenticator.Response{User: info, Audiences: audiences}, true, nil
}

// withCredentialID returns extra with another ID of the credential.
func withCredentialID(extra map[string][]string, id string) map[string][]string {
	own := maps.Clone(extra)
	if own == nil {
		own = map[string][]string{}
	}
	own[user.CredentialIDKey] = []string{id}
	return own
}

// errRefused reports that a user or client may no longer sign in.
var errRefused = errors.New("the user or client was disabled or deleted, or its password or credential is no longer valid")

// callerOf returns the user of a session according to the current user file, or to the credential that began the session
// by a link.
func (l *Login) callerOf(ctx context.Context, s *Session) (*user.DefaultInfo, error) {
	if who, err := l.links.ownerOf(s); who != nil || err != nil {
		return l.callerByLink(ctx, who, err)
	}
	known := l.users.current.Load()
	if s.Client != "" {
		if c := known.clients[s.Client]; c == nil || c.Disabled {
			return nil, errRefused
		}
	}
	if s.Type == ofClient {
		c := known.clients[s.User]
		if c == nil || c.Disabled || len(c.Groups) == 0 || fingerprint(c.Secret) != s.Password {
			return nil, errRefused
		}
		return &user.DefaultInfo{Name: c.Caller(), Groups: slices.Clone(c.Groups)}, nil
	}
	if s.Provider != "" {
		if known.providers[s.Provider] == nil {
			return nil, errRefused
		}
		return &user.DefaultInfo{Name: s.User, UID: s.UID, Groups: slices.Clone(s.Groups)}, nil
	}
	u := known.users[s.User]
	if u == nil || u.Disabled || u.UID != s.UID || fingerprint(u.Password) != s.Password {
		return nil, errRefused
	}
	return &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: slices.Clone(u.Groups)}, nil
}

func (l *Login) callerByLink(ctx context.Context, who *owner, err error) (*user.DefaultInfo, error) {
	if err != nil || !l.HasLinks() {
		return nil, errRefused
	}
	info, err := l.links.authenticate(ctx, *who)
	if err != nil {
		return nil, err
	}
	return &user.DefaultInfo{Name: info.GetName(), UID: info.GetUID(), Groups: slices.Clone(info.GetGroups()), Extra: info.GetExtra()}, nil
}

// fingerprint identifies a hash without revealing anything about the password. A new password has a new hash, and
// therefore ends the sessions of the previous one.
func fingerprint(hash string) string {
	sum := sha256.Sum256([]byte(hash))
	return hex.EncodeToString(sum[:16])
}
