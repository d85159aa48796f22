package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/identity/login"
)

// minTokenLifetime and maxTokenLifetime bound the lifetime of access tokens. A token must live long enough to be
// used once. Before its lifetime is over, only a check of its session can end it.
const minTokenLifetime, maxTokenLifetime = 10 * time.Second, 24 * time.Hour

// completeLogin fills in defaults and returns the first mistake.
func (p *Plan) completeLogin() error {
	o := &p.Options.Login
	if path := p.Path(login.FileName); path != "" && o.UserFile == "" {
		p.UsersAwaited = !isFile(path)
		if !p.UsersAwaited || p.handlerOfLogin() == "" {
			o.UserFile = path
		}
	}
	if o.UserFile == "" {
		return inVain("Login", *o, "add Options.Login.UserFile, or create users with the verb user passwd")
	}
	o.TokenLifetime = cmp.Or(o.TokenLifetime, login.DefaultTokenLifetime)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, min(login.DefaultIdleTimeout, cmp.Or(o.SessionLifetime, login.DefaultIdleTimeout)))
	o.SessionLifetime = cmp.Or(o.SessionLifetime, max(login.DefaultSessionLifetime, o.IdleTimeout))
	switch {
	case o.TokenLifetime < minTokenLifetime || o.TokenLifetime > maxTokenLifetime:
		return fmt.Errorf("Options.Login.TokenLifetime %s is not between %s and %s", o.TokenLifetime, minTokenLifetime, maxTokenLifetime)
	case o.IdleTimeout < o.TokenLifetime:
		return fmt.Errorf("Options.Login.IdleTimeout %s is less than Options.Login.TokenLifetime, %s", o.IdleTimeout, o.TokenLifetime)
	case o.SessionLifetime < o.IdleTimeout:
		return fmt.Errorf("Options.Login.SessionLifetime %s is less than Options.Login.IdleTimeout, %s", o.SessionLifetime, o.IdleTimeout)
	}
	if err := checkPublicURL(o.PublicURL); err != nil {
		return fmt.Errorf("Options.Login.PublicURL %q: %w", o.PublicURL, err)
	}
	if slices.Contains(p.Options.ServiceAccounts.Issuers, p.LoginIssuer()) {
		return fmt.Errorf("Options.ServiceAccounts.Issuers %q is the issuer of users' tokens: choose another", p.LoginIssuer())
	}
	if path := p.handlerOfLogin(); path != "" {
		return fmt.Errorf("handler %q: Options.Login.UserFile reserves the path for logins", path)
	}
	return nil
}

// handlerOfLogin returns the path of a handler of the definition that conflicts with a path for signing in; empty
// if there is none.
func (p *Plan) handlerOfLogin() string {
	for _, h := range p.Definition.Handlers {
		for _, path := range login.Paths() {
			if strings.HasPrefix(h.Path, path) || h.Path+"/" == path {
				return h.Path
			}
		}
	}
	return ""
}

func checkPublicURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("must have a scheme and a host, such as https://api.example.com")
	case u.Scheme == "http" && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()):
		return nil
	case u.Scheme != "https":
		return errors.New("not an https URL: clients would send passwords in plain text")
	}
	return nil
}

// LoginIssuer returns the issuer of users' access tokens.
func (p *Plan) LoginIssuer() string {
	return cmp.Or(p.Options.Login.PublicURL, "https://"+p.Definition.Name) + "/oauth"
}

// refuseLogin rejects login options on an aggregated server.
func refuseLogin(o *config.Options) error {
	return inVain("Login", o.Login, "the cluster authenticates users for an aggregated server")
}
